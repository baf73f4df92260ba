"""Schema 1: the lease, runs and their instants, jobs, intents."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_OPEN = sa.text("state = 'open'")


def upgrade() -> None:
    """Make the tables, and the one row of the lease."""
    lease = op.create_table(
        "lease",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("until_s", sa.Double(), nullable=False),
    )
    op.bulk_insert(lease, [{"id": 1, "holder": "", "epoch": 0, "until_s": 0.0}])
    op.create_table(
        "runs",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("opening", sa.Text(), nullable=False),
        sa.Column("began_s", sa.Double(), nullable=False),
        sa.Column("ended_s", sa.Double()),
        sa.Column("reason", sa.Text(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "instants",
        sa.Column("run", _NUMBER, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("instant", sa.BigInteger(), nullable=False),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("decisions", sa.Text()),
        sa.PrimaryKeyConstraint("run", "instant"),
    )
    _jobs()
    _intents()


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("uuid", sa.Text(), primary_key=True),
        sa.Column("engine_id", sa.Text(), nullable=False),
        sa.Column("engine_submit_s", sa.Double(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("submitted_s", sa.Double(), nullable=False),
        sa.Column("ended_s", sa.Double()),
        sa.Column("record", sa.Text(), nullable=False),
    )
    op.create_index("jobs_by_engine_id", "jobs", ["engine_id"])
    op.create_index("jobs_by_submission", "jobs", ["submitted_s", "uuid"])
    op.create_index("jobs_by_end", "jobs", ["ended_s"])


def _intents() -> None:
    op.create_table(
        "intents",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("run", sa.BigInteger(), nullable=False),
        sa.Column("instant", sa.BigInteger(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("made_s", sa.Double(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("intents_by_instant", "intents", ["run", "instant"])
    op.create_index("intents_open", "intents", ["id"], sqlite_where=_OPEN, postgresql_where=_OPEN)
