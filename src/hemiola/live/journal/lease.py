"""Who leads: one row, whose epoch grows with each new leader. Functions of a connection in a transaction."""

from __future__ import annotations

from sqlalchemy import Connection, Row, select, update

from hemiola.live.journal.errors import Deposed
from hemiola.live.journal.records import Leader
from hemiola.live.journal.tables import LEASE

__all__ = ["check_leads", "lead", "leader", "renew", "resign"]


def lead(connection: Connection, holder: str, now_s: float, ttl_s: float) -> int | None:
    """Take the lease unless somebody else's holds; the new epoch."""
    row = _lease(connection)
    if row.holder not in ("", holder) and row.until_s > now_s:
        return None
    connection.execute(update(LEASE).values(holder=holder, epoch=row.epoch + 1, until_s=now_s + ttl_s))
    return int(row.epoch) + 1


def renew(connection: Connection, epoch: int, now_s: float, ttl_s: float) -> bool:
    """Hold the lease longer; whether it is still this epoch's."""
    row = _lease(connection)
    if not row.holder or row.epoch != epoch:
        return False
    connection.execute(update(LEASE).values(until_s=now_s + ttl_s))
    return True


def resign(connection: Connection, epoch: int) -> None:
    """Give the lease back, if it is this epoch's."""
    connection.execute(update(LEASE).where(LEASE.c.epoch == epoch).values(holder="", until_s=0.0))


def leader(connection: Connection) -> Leader | None:
    """Who has the lease; it may be over."""
    row = connection.execute(select(LEASE)).one()
    return Leader(row.holder, row.epoch, row.until_s) if row.holder else None


def check_leads(connection: Connection, epoch: int) -> None:
    """Raise Deposed unless this epoch leads; nobody else can lead before the transaction ends."""
    row = _lease(connection)
    if not row.holder or row.epoch != epoch:
        raise Deposed(epoch, row.holder, row.epoch)


def _lease(connection: Connection) -> Row[int, str, int, float]:
    return connection.execute(select(LEASE).with_for_update()).one()
