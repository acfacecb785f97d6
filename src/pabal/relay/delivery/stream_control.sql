-- name: set_stream_account
update public.relay_streams set account_id = :account where id = :id;

-- name: find_ended_waits
-- Of the sessions that wait for their first user in this process: those whose wait has ended. A session that is missing
-- was deleted with its account.
select w.id as session_id,
       case
           when s.id is null or s.revoked_at is not null then 'refused'
           when a.disabled_at is not null then 'disabled'
           else 'lapsed'
       end as reason
from unnest(:sessions::uuid[]) as w (id)
left join public.relay_sessions s on s.id = w.id
left join public.accounts a on a.id = s.account_id
where s.id is null or s.revoked_at is not null or a.disabled_at is not null
   or (s.account_id is null and s.expires_at <= pabal.now());
