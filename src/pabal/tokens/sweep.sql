-- name: expire_tokens
select public.cleanup_expired_tokens();

-- name: purge_token_families
-- Whole families, long after their end; their tokens go with them.
delete from public.token_families
where id = any(array(
    (select id from public.token_families where expires_at < pabal.now() - :keep::interval order by expires_at limit :batch)
    union
    (select id from public.token_families where revoked_at < pabal.now() - :keep::interval order by revoked_at limit :batch)
    limit :batch
));
