drop table if exists pabal.operator_sessions;
drop table if exists pabal.operators;
