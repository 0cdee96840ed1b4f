package dlock

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// Kinds of errors, for errors.Is.  What else the server complains of comes as the driver's own
// error.
var (
	ErrRefused      = errors.New("dlock: refused")       // somebody else holds the lock; see Error.Holder
	ErrLost         = errors.New("dlock: lost")          // the server says that the lease is not held any more (LK002)
	ErrDeadlock     = errors.New("dlock: deadlock")      // the wait would never have ended (40P01)
	ErrTokenStale   = errors.New("dlock: token stale")   // a write was refused, as a later holder has written (LK001)
	ErrTokenMissing = errors.New("dlock: token missing") // a write was refused, as its transaction presents no token (LK003)
	ErrUnreachable  = errors.New("dlock: unreachable")   // the server could not be asked in time, or did not answer
	ErrUnsupported  = errors.New("dlock: unsupported")   // the database has no dlock, or too old a one
	ErrClosed       = errors.New("dlock: the session is closed")
)

var kinds = map[string]error{"LK001": ErrTokenStale, "LK002": ErrLost, "LK003": ErrTokenMissing, "40P01": ErrDeadlock}

// An Error is of one of the kinds.
type Error struct {
	Kind   error
	Holder string // who holds the lock that was refused, if that is known
	text   string
	cause  error
}

func (e *Error) Error() string        { return "dlock: " + e.text }
func (e *Error) Is(target error) bool { return target == e.Kind }
func (e *Error) Unwrap() error        { return e.cause }

func failure(kind, cause error, format string, args ...any) *Error {
	return &Error{Kind: kind, text: fmt.Sprintf(format, args...), cause: cause}
}

// Explain makes an error of the driver one of the kinds, if its SQLSTATE is that of a kind.  Errors
// of this package need no more of it.
func Explain(err error) error {
	if kind := kinds[sqlState(err)]; kind != nil && !errors.Is(err, kind) {
		return failure(kind, err, "%v", err)
	}
	return err
}

// Why a lease has ended, and what the work failed with.
type bothErrors struct{ ended, work error }

func (e *bothErrors) Error() string        { return fmt.Sprintf("%v; the work failed: %v", e.ended, e.work) }
func (e *bothErrors) Is(target error) bool { return errors.Is(e.work, target) }
func (e *bothErrors) As(target any) bool   { return errors.As(e.work, target) }
func (e *bothErrors) Unwrap() error        { return e.ended }

// The SQLSTATE, or nothing if it is no error of the server's.
func sqlState(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}

// The server's function that has raised it, for which drivers have a field of this name.
func routine(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		if fields := reflect.Indirect(reflect.ValueOf(state)); fields.Kind() == reflect.Struct {
			if field := fields.FieldByName("Routine"); field.IsValid() {
				return field.String()
			}
		}
	}
	return ""
}

func hasPrefix(code string, prefixes ...string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(code, prefix) {
			return true
		}
	}
	return false
}

// Is this an error that says nothing but that this server cannot be asked now?  A standby can do
// nothing.
func isOutage(err error) bool {
	code := sqlState(err)
	return code == "" && !errors.Is(err, ErrUnsupported) || hasPrefix(code, "08", "57P", "25006", "53300")
}

// Could this error be of one request among many?
func isOfOne(err error) bool {
	return !isOutage(err) && !hasPrefix(sqlState(err), "42883", "3F000", "42501", "57", "0A", "25")
}
