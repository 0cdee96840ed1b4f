"""Waiting for locks, whatever the number of those who wait; under the lock.

The loop of a request is in _session.py: it asks, waits here for its turn, and asks again.  A request for one
lock keeps its place in the queue of the lock, and one connection, there only while something waits, takes
the turns of all.  After an outage, or if places may have run out as this process or its machine was stopped, all
ask again.  Requests for paths and several locks have no places: they ask again, all at the same
moments, in intervals that grow, and when a lease of this session has gone.
"""

from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

from ._core import Promise, Work, core
from ._lines import Kind, Lines
from ._values import interval, now

if TYPE_CHECKING:
    from ._session import Session, Want

SHORTEST = 0.01
LONGEST = 0.5

# How long a place is kept between calls, which is how long a program that dies holds others up;
# and how long a call waits, for it keeps a snapshot, and two of them have to be answered meanwhile.
KEEP = 10.0
TAKE = 4.0

TAKE_TURNS = Kind('SELECT name, owner, token FROM {}dlock_take($1, $2::interval, $3::interval)', within=TAKE + 10)


class Waits:
    def __init__(self, session: 'Session') -> None:
        self.session = session
        self.places: Dict[Tuple[str, str], List['Want']] = {}   # by name and owner
        self.taker: Optional[Lines] = None                      # the connection that takes turns
        self.taking = False
        self.left: Dict[Tuple[str, str], float] = {}            # when a request for a place ended, for turns asked for before
        self.others: List['Want'] = []                          # those that have no places
        self.delay = SHORTEST
        self.sleeping = False

    def expect(self, want: 'Want') -> None:
        """A place is about to be asked for: a turn may come before the answer."""
        places = self.places.setdefault(want.place, [])
        if want not in places:
            places.append(want)

    def forget(self, want: 'Want') -> None:
        """It has no place any more."""
        places = self.places.get(want.place, [])
        if want in places:
            places.remove(want)
            if not places:
                del self.places[want.place]
            if self.taking:
                self.left[want.place] = now()

    async def turn(self, want: 'Want', sent: float) -> None:
        """Wait for a grant, want.got; or until it is time to ask again.  It has asked for its place at "sent"."""
        core().arm(want.until, self.session)
        if want.kind == 'lock':
            if not self.taking:
                self.taking = True
                Work(self.take(sent))
            await want.go
        else:
            if not want.polls:
                want.polls = True
                self.delay = SHORTEST
            self.others.append(want)
            if not self.sleeping:
                self.sleeping = True
                core().sleep(self.delay).then(lambda: self.again(False))
            await want.go
            self.others.remove(want)

    def end(self, want: 'Want') -> None:
        """It does not wait any longer."""
        want.go.set()

    async def take(self, last: float) -> None:
        """Places are kept from "last" on: when turns, or the first one, were asked for."""
        self.taker = Lines(self.session._conninfo, only=True)
        while self.places:
            try:
                rows, sent = await self.taker.ask(TAKE_TURNS, (self.session.client, interval(TAKE), interval(KEEP)))
                for name, owner, token in rows:
                    self.taken((name or '', owner or ''), token, sent)
                self.left = {place: moment for place, moment in self.left.items() if moment > sent}
                if now() - last > KEEP:
                    self.all_again()
                last = sent
            except Exception:
                await core().sleep(LONGEST)
                self.all_again()
                last = now()
        self.taking = False
        self.taker.close()

    def taken(self, place: Tuple[str, str], token: Optional[str], sent: float) -> None:
        wants = self.places.get(place, [])
        if self.left.get(place, 0.0) > sent:
            sent = 0.0      # perhaps the turn of one that has ended, and has been undone: it is to be confirmed
        if wants:
            wants[0].got = (token, sent)
            for want in list(wants):
                self.end(want)
        elif token:
            self.session._decline(place[0], token)

    def all_again(self) -> None:
        for wants in list(self.places.values()):
            for want in list(wants):
                want.in_doubt = True
                self.end(want)

    def again(self, released: bool = True) -> None:
        """A lease of this session has ended, or time is up."""
        if not released:
            self.sleeping = False
            self.delay = min(2 * self.delay, LONGEST)
        for want in list(self.others):
            self.end(want)
