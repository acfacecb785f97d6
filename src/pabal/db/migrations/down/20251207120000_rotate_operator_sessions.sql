drop index if exists pabal.idx_operator_sessions_previous_hash;
drop index if exists pabal.idx_operator_sessions_id;
alter table pabal.operator_sessions drop constraint if exists session_previous_is_hashed;
alter table pabal.operator_sessions drop column if exists seed;
alter table pabal.operator_sessions drop column if exists rotated_at;
alter table pabal.operator_sessions drop column if exists previous_hash;
alter table pabal.operator_sessions drop column if exists id;
