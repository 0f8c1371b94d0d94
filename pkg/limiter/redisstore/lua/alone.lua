-- Under low load most batches have one hit. Such a batch returns here, because the definitions in the rest of the
-- script would take longer than the decision.
local found -- values of KEYS
if #ARGV == 6 and #ARGV[3] == 8 and #ARGV[6] == 32 then -- one policy, and one plan with one hit
  local _, mode, _, n = unpack_from('<dddd', ARGV[6])
  local numbers = ARGV[5]
  local reserve, step = unpack_from('<dd', numbers, #numbers - 31)
  local decides = mode == ENFORCE and n > 0 and quick[step]
  local decide = decides and decides(unpack_from('<' .. rep('d', #numbers / 8), numbers))
  if decide then
    found = call('MGET', KEYS[1])
    local new, left, reset, after = decide(found[1], n)
    if new then
      write(KEYS[1], new, found[1], after)
      if reserve > 0 then return pack('<ddd', left, reset, now) end
      return pack('<dd', left, reset)
    end
  end
end
