-- name: now
select pabal.now();
