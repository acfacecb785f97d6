-- Tables of the queue engine: chores, processes and throughput.

create table if not exists pabal.chores (
  name text primary key,
  last_started_at timestamptz,
  last_finished_at timestamptz,
  last_rows bigint,
  last_error text,
  runs bigint not null default 0
);
comment on table pabal.chores is 'Periodic maintenance: the last run of each chore.';
comment on column pabal.chores.name is 'Name of the chore.';
comment on column pabal.chores.last_started_at is 'When it last started, in any process.';
comment on column pabal.chores.last_finished_at is 'When it last finished.';
comment on column pabal.chores.last_rows is 'Rows the last run changed.';
comment on column pabal.chores.last_error is 'Error of the last run; NULL after a success.';
comment on column pabal.chores.runs is 'Number of runs.';

create table if not exists pabal.workers (
  id text primary key,
  host text not null,
  pid integer not null,
  lanes text[] not null default '{}',
  started_at timestamptz not null default pabal.now(),
  seen_at timestamptz not null default pabal.now(),
  details jsonb not null default '{}'
);
comment on table pabal.workers is 'Running processes of the hub, as they last reported.';
comment on column pabal.workers.id is 'Id of the process; the same as in processor_id.';
comment on column pabal.workers.host is 'Host it runs on.';
comment on column pabal.workers.pid is 'Process id on that host.';
comment on column pabal.workers.lanes is 'Lanes it works on.';
comment on column pabal.workers.started_at is 'When it started.';
comment on column pabal.workers.seen_at is 'When it last reported.';
comment on column pabal.workers.details is 'Version, settings and rows in flight.';

-- Each process counts in memory and adds its counts every few seconds, so nothing here is on a hot path. The primary key
-- starts with the minute: rows are read and purged by it. Only the counts change, so updates are HOT.
create table if not exists pabal.throughput (
  minute timestamptz not null,
  lane text not null,
  done bigint not null default 0,
  failed bigint not null default 0,
  dead bigint not null default 0,
  constraint throughput_pkey primary key (minute, lane),
  constraint throughput_counts_not_negative check (done >= 0 and failed >= 0 and dead >= 0)
) with (fillfactor = 70);
comment on table pabal.throughput is 'Outcomes per lane and minute; kept for a day.';
comment on column pabal.throughput.minute is 'Start of the minute in which the counts were written.';
comment on column pabal.throughput.lane is 'relay, events or notifications.';
comment on column pabal.throughput.done is 'Rows that were done.';
comment on column pabal.throughput.failed is 'Attempts that failed without ending their row; for the relay: failed callbacks and expired messages.';
comment on column pabal.throughput.dead is 'Rows that became dead.';

-- Privileges -----------------------------------------------------------------------------------------------------------

alter table pabal.chores enable row level security;
drop policy if exists "chores_service_role_all" on pabal.chores;
create policy "chores_service_role_all" on pabal.chores for all to service_role using (true) with check (true);
revoke all on table pabal.chores from public, anon, authenticated;
grant select, insert, update, delete on table pabal.chores to service_role;

alter table pabal.workers enable row level security;
drop policy if exists "workers_service_role_all" on pabal.workers;
create policy "workers_service_role_all" on pabal.workers for all to service_role using (true) with check (true);
revoke all on table pabal.workers from public, anon, authenticated;
grant select, insert, update, delete on table pabal.workers to service_role;

alter table pabal.throughput enable row level security;
drop policy if exists "throughput_service_role_all" on pabal.throughput;
create policy "throughput_service_role_all" on pabal.throughput for all to service_role using (true) with check (true);
revoke all on table pabal.throughput from public, anon, authenticated;
grant select, insert, update, delete on table pabal.throughput to service_role;
