-- name: relay_progress
select exists (select from public.conversation_mappings) as has_user,
       exists (select from public.conversation_mappings where state = 'PAIRED') as has_pairing,
       exists (select from public.relay_replies where answered_at is not null) as has_reply;

-- name: relay_is_used
-- For the overview: reads one row at most, however many users are paired with no bot.
select exists (select from public.conversation_mappings);
