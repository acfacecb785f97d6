delete from public.relay_replies where message_id is null;
drop index if exists public.relay_replies_waiting_idx;
drop index if exists public.relay_replies_waiting_account_idx;
drop index if exists public.relay_replies_continues_idx;
alter table public.relay_replies drop constraint if exists reply_hash_length;
alter table public.relay_replies drop constraint if exists reply_waiting_is_kept;
alter table public.relay_replies drop constraint if exists reply_further_spends_nothing;
alter table public.relay_replies drop constraint if exists reply_has_message;
alter table public.relay_replies alter column message_id set not null;
comment on column public.relay_replies.message_id is 'The message it answers; one reply each.';
alter table public.relay_replies
  drop column if exists waits_until,
  drop column if exists continues,
  drop column if exists response_hash;
