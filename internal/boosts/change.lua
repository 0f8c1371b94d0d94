-- Replaces the boosts unless others have changed them meanwhile.
--
-- KEYS[1]  the boosts: a revision, a line feed, and the boosts in JSON
-- ARGV[1]  the revision that is to be replaced, '' for that there are none
-- ARGV[2]  the boosts with a new revision, '' for none
-- ARGV[3]  how long they are kept, in milliseconds
-- answer   1; 0 if the revision is another
local value = redis.call('GET', KEYS[1]) or ''
if string.match(value, '^[^\n]*') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
redis.pcall('PUBLISH', KEYS[1], '') -- a hint: who may not publish it has changed them all the same
return 1
