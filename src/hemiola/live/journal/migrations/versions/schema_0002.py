"""Schema 2: jobs that have not ended, and those of one user, are found without reading all."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_OPEN = sa.text("status <> 'ended'")


def upgrade() -> None:
    """Make the indexes."""
    op.create_index("jobs_open", "jobs", ["submitted_s", "uuid"], sqlite_where=_OPEN, postgresql_where=_OPEN)
    op.create_index("jobs_by_owner", "jobs", ["owner", "submitted_s", "uuid"])
