-- name: identify_database
-- Tells this database from others that use the same NATS server, without naming it.
select encode(sha256(convert_to(current_database() || ' ' || extract(epoch from min(applied_at)), 'UTF8')), 'hex')
from pabal.schema_migrations;
