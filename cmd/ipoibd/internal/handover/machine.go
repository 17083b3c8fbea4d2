package handover

// state is the state of one side.
type state string

// event is what happens to it.
type event string

const (
	// Of the giver.
	asking   state = "asking"   // it prepares the offer
	offering state = "offering" // it sends the offer
	offered  state = "offered"  // it waits for the taker, stopped
	giving   state = "giving"   // it sends yours
	given    state = "given"    // the taker owns everything
	keeping  state = "keeping"  // the giver owns everything and continues, but the taker does not know yet
	kept     state = "kept"     // the giver owns everything, and the taker knows

	// Of the taker.
	waiting  state = "waiting"  // for the offer
	building state = "building" // it owns nothing yet
	ready    state = "ready"    // it has sent taken
	leaving  state = "leaving"  // as ready, but it accepts only what has been sent already
	owner    state = "owner"    // it owns everything
	out      state = "out"      // it owns nothing, and closes what it received

	prepared    event = "prepared"  // the giver has stopped at a boundary
	failed      event = "failed"    // this side cannot go on
	sent        event = "sent"      // the message of this state
	ended       event = "ended"     // the taker is to end
	gotOffer    event = "offer"     // a message, as the next three
	gotTaken    event = "taken"     //
	gotYours    event = "yours"     //
	gotWithdraw event = "withdrawn" //
	broken      event = "broken"    // the connection has ended, or carries nonsense
	late        event = "late"      // the limit of this step has passed
)

// step is what an event leads to: the next state, and the message that is sent in it, if any.
type step struct {
	to   state
	send string
}

// steps has both machines. The other events of a state cannot happen, or change nothing.
var steps = map[state]map[event]step{
	asking: {
		prepared: {offering, "offer"},
		failed:   {keeping, "withdrawn"},
		broken:   {keeping, "withdrawn"},
	},
	offering: { // a part of an offer is useless to the taker
		sent:   {offered, ""},
		failed: {kept, ""},
		broken: {kept, ""},
		late:   {kept, ""},
	},
	offered: {
		gotTaken: {giving, "yours"},
		failed:   {keeping, "withdrawn"},
		broken:   {keeping, "withdrawn"},
		late:     {keeping, "withdrawn"},
	},
	giving: { // the taker has read the offer, so there is room for yours
		sent:   {given, ""},
		failed: {keeping, "withdrawn"},
		broken: {kept, ""},
		late:   {keeping, "withdrawn"},
	},
	// Without a limit: for a taker that has the offer, the end of the connection means that the giver has died.
	keeping: {
		sent:   {kept, ""},
		broken: {kept, ""},
	},
	waiting: {
		gotOffer:    {building, ""},
		gotWithdraw: {out, ""},
		failed:      {out, ""},
		broken:      {out, ""},
		late:        {out, ""},
	},
	building: { // it does not read; what the giver sends meanwhile is read in the state ready
		prepared: {ready, "taken"},
		failed:   {out, ""},
		broken:   {out, ""},
	},
	// Without a limit, and without a way to fail, since the giver may have given everything up already.
	// A living giver answers, and when its own limit has passed withdraws, before it ends the connection.
	ready: {
		gotYours:    {owner, ""},
		gotWithdraw: {out, ""},
		broken:      {owner, ""}, // the giver has died
		ended:       {leaving, ""},
	},
	// The giver cannot send yours any more, so it keeps everything unless yours was on its way.
	leaving: {
		gotYours:    {owner, ""},
		gotWithdraw: {out, ""},
		broken:      {out, ""},
	},
}

// becomes is the only writer of a state. An event that the table does not have for the state is a
// message at the wrong time, and breaks the connection.
func (s *state) becomes(e event) (send string) {
	next, ok := steps[*s][e]
	if !ok {
		next = steps[*s][broken]
	}
	*s = next.to
	return next.send
}
