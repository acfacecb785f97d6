-- name: database_now
select pabal.now();
