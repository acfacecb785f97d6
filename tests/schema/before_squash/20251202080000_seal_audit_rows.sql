-- A seal names its rows. Rows get their id before they commit, so "everything up to this id" would be a promise about rows
-- that nobody has seen yet.

do $$
begin
  if exists (select from pabal.audit_seals) then
    raise exception 'pabal.audit_seals holds seals that name no rows; Pabal never made such seals, so look who did'
      using errcode = 'object_not_in_prerequisite_state';
  end if;
end
$$;

alter table pabal.audit_seals
  add column if not exists ids bigint[] not null,
  add column if not exists macs bytea not null,
  add column if not exists below xid8 not null,
  add column if not exists floor bigint not null default 0;
comment on column pabal.audit_seals.ids is 'The rows sealed, in the order of their ids.';
comment on column pabal.audit_seals.macs is 'Eight bytes of HMAC-SHA-256 for each row, in the same order: they tell which row changed.';
comment on column pabal.audit_seals.below is 'Every row above the floor that an older transaction wrote is sealed.';
comment on column pabal.audit_seals.floor is 'Rows up to this id are from before the database was restored into another server, which counts its transactions anew; all of them are sealed.';
comment on column pabal.audit_seals.digest is 'The HMAC over the seal before and all that this one says.';

alter table pabal.audit_seals drop constraint if exists seal_names_its_rows;
alter table pabal.audit_seals add constraint seal_names_its_rows check (
  cardinality(ids) = count and octet_length(macs) = 8 * count and ids[1] = first_id and ids[count::integer] = last_id
);

create index if not exists idx_audit_log_xid on pabal.audit_log (xid);
create index if not exists idx_audit_seals_last_id on pabal.audit_seals (last_id);

-- How far the seals were counted: a chain that ends earlier may have been cut.
grant select on sequence pabal.audit_seals_id_seq to service_role;
