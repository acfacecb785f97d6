-- name: now
select pabal.now();

-- name: since_it_left
select pabal.now() - :left_at::timestamptz as ago,
       (select count(*) from pabal.audit_seals where key_id = :id) as seals;
