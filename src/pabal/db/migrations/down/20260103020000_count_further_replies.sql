drop function if exists pabal.count_further_replies(uuid);
