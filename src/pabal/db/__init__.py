"""Everything that knows PostgreSQL: connections, transactions, named queries, migrations, the embedded server."""
