#!/bin/sh
# Run once by Patroni when it has created the cluster, with a URL of the server as its argument (bootstrap.yaml names it): an
# ordinary role that owns the hub's database. CREATEROLE is for `pabal migrate up`, which creates the roles of the specification.
set -eu
psql -v ON_ERROR_STOP=1 -v password="$PABAL_DB_PASSWORD" "$1" <<'SQL'
create role pabal login createrole password :'password';
create database pabal owner pabal;
SQL
