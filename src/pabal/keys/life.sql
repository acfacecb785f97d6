-- name: database_clock
select pabal.now();

-- name: old_key_usage
select pabal.now() - :left_at::timestamptz as age,
       (select count(*) from pabal.audit_seals where key_id = :id) as seal_count;
