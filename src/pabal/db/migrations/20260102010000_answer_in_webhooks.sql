-- A bot's answer may be given in the response to its message's webhook, without a callback.

alter table public.accounts add column if not exists answer_mode text not null default 'auto';
alter table public.accounts
  add constraint account_answer_mode check (answer_mode in ('auto', 'synchronous', 'callback', 'held'));
comment on column public.accounts.answer_mode is 'How users get answers: auto, synchronous (in the response to the webhook), callback or held (fetched with a button).';

alter table public.inbound_messages add column if not exists webhook_open_until timestamptz;
comment on column public.inbound_messages.webhook_open_until is 'Until when its webhook is held open for the answer; in the past once it was answered. NULL if it was not held.';

alter table public.relay_replies add column if not exists in_webhook boolean not null default false;
comment on column public.relay_replies.in_webhook is 'Whether it was given in the response to the webhook instead of the callback.';
alter table public.relay_replies
  add constraint reply_in_webhook_is_spent check (not in_webhook or coalesce(spent_by = 'agent', false));
