drop table if exists notification.stream_tickets;
