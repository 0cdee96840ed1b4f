module example.org/dlock/example

go 1.19

require (
	example.org/dlock v1.0.0
	github.com/jackc/pgx/v5 v5.5.5
)

replace example.org/dlock => ../
