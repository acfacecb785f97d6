drop index if exists notification.requests_no_transport_idx;
update notification.requests set reason = 'cancelled' where reason = 'no_transport';
alter table notification.requests drop constraint if exists request_ended_has_reason;
alter table notification.requests add constraint request_ended_has_reason check (
  case state
    when 'suppressed' then coalesce(reason in (
      'dm_disabled', 'category_off', 'duplicate', 'address_unhealthy', 'expired', 'storm', 'cancelled'
    ), false)
    when 'failed' then coalesce(reason in ('exhausted', 'refused', 'unknown', 'unrenderable'), false)
    else reason is null
  end
);
