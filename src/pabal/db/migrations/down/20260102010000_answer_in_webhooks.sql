alter table public.relay_replies drop constraint if exists reply_in_webhook_is_spent;
alter table public.relay_replies drop column if exists in_webhook;
alter table public.inbound_messages drop column if exists webhook_open_until;
alter table public.accounts drop constraint if exists account_answer_mode;
alter table public.accounts drop column if exists answer_mode;
