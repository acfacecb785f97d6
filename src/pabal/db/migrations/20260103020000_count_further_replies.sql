-- The blocks of an answer are counted after its message is locked. The function is volatile, so it reads what was committed
-- while the calling statement waited for the lock.

create or replace function pabal.count_further_replies(message uuid) returns bigint
language sql volatile
set search_path = ''
as $$
  select count(*) from public.relay_replies r where r.continues = count_further_replies.message
$$;
comment on function pabal.count_further_replies(uuid) is 'Number of further blocks that are kept for a message, as committed now.';
revoke all on function pabal.count_further_replies(uuid) from public, anon, authenticated;
grant execute on function pabal.count_further_replies(uuid) to service_role;
