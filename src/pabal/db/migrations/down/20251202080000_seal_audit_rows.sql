-- Takes back 20251202080000_seal_audit_rows.sql. A seal that does not name its rows proves nothing, and would keep this
-- file from being applied again: the seals go, and the rows are sealed anew.

alter table pabal.audit_seals disable trigger audit_seals_append_only;
truncate table pabal.audit_seals;
alter table pabal.audit_seals enable trigger audit_seals_append_only;

revoke select on sequence pabal.audit_seals_id_seq from service_role;
drop index if exists pabal.idx_audit_seals_last_id;
drop index if exists pabal.idx_audit_log_xid;
alter table pabal.audit_seals drop constraint if exists seal_lists_its_rows;
alter table pabal.audit_seals
  drop column if exists floor,
  drop column if exists below,
  drop column if exists macs,
  drop column if exists ids;
comment on column pabal.audit_seals.digest is 'The HMAC over the rows and the seal before.';
