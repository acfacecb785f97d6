drop function if exists pabal.audit_entries_of(text);
drop function if exists pabal.audit_entries_about(text, boolean);
drop table if exists pabal.audit_seals;
drop table if exists pabal.audit_log;
drop function if exists pabal.refuse_change();
