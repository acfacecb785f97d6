#!/bin/sh
# Run once by the image of PostgreSQL when its volume is empty: an ordinary role that owns the hub's database.
# CREATEROLE is for `pabal migrate up`, which creates the roles that the specification names.
set -eu
psql -v ON_ERROR_STOP=1 -v password="$PABAL_DB_PASSWORD" -U "${POSTGRES_USER:-postgres}" -d postgres <<'SQL'
create role pabal login createrole password :'password';
create database pabal owner pabal;
SQL
