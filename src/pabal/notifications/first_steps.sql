-- name: notification_progress
select exists (select from notification.requests) as has_request,
       exists (
           select
           from (
               select state from notification.requests where ended_at is not null order by ended_at desc limit :limit
           ) ended
           where ended.state = 'sent'
       ) as has_sent;

-- name: notifications_were_requested
select exists (select from notification.requests);
