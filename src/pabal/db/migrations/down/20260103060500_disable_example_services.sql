-- Which of the services an operator has disabled since is not known: they stay as they are.

select 1;
