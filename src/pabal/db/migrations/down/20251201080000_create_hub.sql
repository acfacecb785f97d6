drop table if exists pabal.workers;
drop table if exists pabal.chores;
drop table if exists pabal.audit_seals;
drop table if exists pabal.audit_log;
drop function if exists pabal.refuse_change();
drop table if exists pabal.operator_sessions;
drop table if exists pabal.operators;
drop table if exists pabal.limits;
