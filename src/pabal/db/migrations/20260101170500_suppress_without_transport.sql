-- A hub without a Discord token suppresses normal notifications for Discord with a reason of their own.

alter table notification.requests drop constraint if exists request_ended_has_reason;
alter table notification.requests add constraint request_ended_has_reason check (
  case state
    when 'suppressed' then coalesce(reason in (
      'dm_disabled', 'category_off', 'duplicate', 'address_unhealthy', 'expired', 'storm', 'cancelled', 'no_transport'
    ), false)
    when 'failed' then coalesce(reason in ('exhausted', 'refused', 'unknown', 'unrenderable'), false)
    else reason is null
  end
);
create index if not exists requests_no_transport_idx on notification.requests (ended_at) where reason = 'no_transport';
