-- Notices by their channel, so that those who wait for one keep no other waiting; and roads to what is few among very many.

-- The claim's: of each channel and priority the due ones, whatever lies in the future. The lease is not in it, so claiming is HOT.
create index if not exists requests_channel_due_idx on notification.requests (recipient_type, priority, scheduled_at)
  where state = 'pending';
drop index if exists notification.requests_due_idx;

-- A list of what is not sent, the newest of each service first: of a million rows these are the few somebody asks for.
create index if not exists requests_unsent_idx on notification.requests (state, coalesce(source_service, ''), created_at desc, id desc)
  where state <> 'sent';

-- One story's, for whoever has only its name.
create index if not exists requests_correlation_idx on notification.requests (correlation_id) where correlation_id is not null;

-- The summary of a storm while it waits, and emergencies that are late: few, where a channel may have had very many.
create index if not exists requests_waiting_emergencies_idx on notification.requests (recipient_type, recipient_id, created_at desc)
  where state = 'pending' and priority = 1;

-- Emergencies that failed and were not raised yet: looked for every second, and hardly ever there.
create index if not exists requests_unraised_idx on notification.requests (ended_at)
  where state = 'failed' and priority = 1 and not decision ? 'raised';
drop index if exists notification.requests_undelivered_idx;

-- What the operator was told about somebody, for the day they are erased.
create index if not exists requests_told_idx on notification.requests ((payload ->> 'recipient'))
  where template_key = 'system.undelivered';
