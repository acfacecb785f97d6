-- The audit log and the seals over it.

create table if not exists pabal.audit_log (
  id bigint generated always as identity primary key,
  at timestamptz not null default pabal.now(),
  actor text not null,
  action text not null,
  subject text,
  details jsonb not null default '{}',
  client_ip inet,
  request_id text,
  xid xid8 not null default pg_current_xact_id(),
  constraint audit_details_is_object check (jsonb_typeof(details) = 'object')
);
comment on table pabal.audit_log is 'Who did what: written in the transaction of the action, never changed. Rows hold ids, never message text.';
comment on column pabal.audit_log.id is 'Order of writing, which is not the order of committing.';
comment on column pabal.audit_log.at is 'When it happened.';
comment on column pabal.audit_log.actor is 'Who did it: a service, an operator or the hub.';
comment on column pabal.audit_log.action is 'What was done, such as token.issued or dead_letter.replayed.';
comment on column pabal.audit_log.subject is 'What it was done to.';
comment on column pabal.audit_log.details is 'Further facts.';
comment on column pabal.audit_log.client_ip is 'Client address.';
comment on column pabal.audit_log.request_id is 'Id of the request.';
comment on column pabal.audit_log.xid is 'Transaction that wrote the row, so that sealing can wait for all older ones.';
create index if not exists idx_audit_log_subject on pabal.audit_log (subject, id) where subject is not null;
create index if not exists idx_audit_log_at on pabal.audit_log (at);
create index if not exists idx_audit_log_xid on pabal.audit_log (xid);

-- A seal lists its rows. A row gets its id before it commits, so "all rows up to this id" would include rows that were
-- not visible when the seal was made.
create table if not exists pabal.audit_seals (
  id bigint generated always as identity primary key,
  first_id bigint not null,
  last_id bigint not null,
  count bigint not null,
  digest bytea not null,
  previous bytea,
  key_id text not null,
  sealed_at timestamptz not null default pabal.now(),
  ids bigint[] not null,
  macs bytea not null,
  below xid8 not null,
  floor bigint not null default 0,
  constraint seal_spans_rows check (first_id <= last_id and count between 1 and last_id - first_id + 1),
  constraint seal_chain_is_linear unique nulls not distinct (previous),
  constraint seal_lists_its_rows check (
    cardinality(ids) = count and octet_length(macs) = 8 * count and ids[1] = first_id and ids[count::integer] = last_id
  )
);
comment on table pabal.audit_seals is 'HMAC chain over the audit log. Its key is not in the database, so tampering can be detected.';
comment on column pabal.audit_seals.id is 'Position in the chain.';
comment on column pabal.audit_seals.first_id is 'First sealed row.';
comment on column pabal.audit_seals.last_id is 'Last sealed row.';
comment on column pabal.audit_seals.count is 'Number of sealed rows; ids have gaps.';
comment on column pabal.audit_seals.digest is 'HMAC over the previous seal and all values of this one.';
comment on column pabal.audit_seals.previous is 'Digest of the previous seal; NULL for the first. Unique, so the chain cannot fork.';
comment on column pabal.audit_seals.key_id is 'Key that made the seal.';
comment on column pabal.audit_seals.sealed_at is 'When it was made.';
comment on column pabal.audit_seals.ids is 'Sealed rows, ordered by id.';
comment on column pabal.audit_seals.macs is 'Eight bytes of HMAC-SHA-256 per row, in the same order: they show which row was changed.';
comment on column pabal.audit_seals.below is 'Every row above the floor that a transaction before this one wrote is sealed.';
comment on column pabal.audit_seals.floor is 'Rows up to this id were written before the database was restored into another server, whose transaction ids start anew; all of them are sealed.';
create index if not exists idx_audit_seals_last_id on pabal.audit_seals (last_id);

-- Append-only for the owner and superusers too, whom grants do not restrict.
create or replace function pabal.refuse_change() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  raise exception '%.% is append-only', tg_table_schema, tg_table_name using errcode = 'insufficient_privilege';
end
$$;
comment on function pabal.refuse_change() is 'Refuses updates and deletes of an append-only table.';
revoke all on function pabal.refuse_change() from public, anon, authenticated;

drop trigger if exists audit_log_append_only on pabal.audit_log;
create trigger audit_log_append_only
  before update or delete or truncate on pabal.audit_log
  for each statement execute function pabal.refuse_change();

drop trigger if exists audit_seals_append_only on pabal.audit_seals;
create trigger audit_seals_append_only
  before update or delete or truncate on pabal.audit_seals
  for each statement execute function pabal.refuse_change();

-- Reads for other packages ---------------------------------------------------------------------------------------------

-- Inlined into the statement that calls it.
create or replace function pabal.audit_entries_about(alias text, include_own boolean)
returns table (id bigint, entry jsonb)
language sql stable parallel safe
begin atomic
  select a.id, jsonb_build_object('at', a.at, 'actor', a.actor, 'action', a.action, 'details', a.details)
  from pabal.audit_log a
  where a.subject = audit_entries_about.alias
     or (audit_entries_about.include_own and a.actor = audit_entries_about.alias);
end;
comment on function pabal.audit_entries_about(text, boolean) is 'Audit entries about a subject and, if wanted, those of its own actions, as a privacy export shows them.';
revoke all on function pabal.audit_entries_about(text, boolean) from public, anon, authenticated;
grant execute on function pabal.audit_entries_about(text, boolean) to service_role;

-- Inlined as well. Both columns of the index are compared, and the caller orders by both: otherwise the planner reads the
-- whole log backwards for a subject without an entry.
create or replace function pabal.audit_entries_of(subject text)
returns table (subject_name text, id bigint, at timestamptz, action text)
language sql stable parallel safe
begin atomic
  select a.subject, a.id, a.at, a.action
  from pabal.audit_log a
  where a.subject is not null
    and (a.subject, a.id) >= (audit_entries_of.subject, 0)
    and (a.subject, a.id) <= (audit_entries_of.subject, 9223372036854775807);
end;
comment on function pabal.audit_entries_of(text) is 'Audit entries of a subject. For the newest, order by subject_name desc, id desc.';
revoke all on function pabal.audit_entries_of(text) from public, anon, authenticated;
grant execute on function pabal.audit_entries_of(text) to service_role;

-- Privileges -----------------------------------------------------------------------------------------------------------

alter table pabal.audit_log enable row level security;
drop policy if exists "audit_log_service_role_all" on pabal.audit_log;
create policy "audit_log_service_role_all" on pabal.audit_log for all to service_role using (true) with check (true);
revoke all on table pabal.audit_log from public, anon, authenticated, service_role;
grant select, insert on table pabal.audit_log to service_role;
revoke all on sequence pabal.audit_log_id_seq from public, anon, authenticated;

alter table pabal.audit_seals enable row level security;
drop policy if exists "audit_seals_service_role_all" on pabal.audit_seals;
create policy "audit_seals_service_role_all" on pabal.audit_seals for all to service_role using (true) with check (true);
revoke all on table pabal.audit_seals from public, anon, authenticated, service_role;
grant select, insert on table pabal.audit_seals to service_role;
revoke all on sequence pabal.audit_seals_id_seq from public, anon, authenticated;
-- The sequence says how many seals were made: a shorter chain was cut.
grant select on sequence pabal.audit_seals_id_seq to service_role;
