package reset

import "time"

// How long a client waits before it dials again.
const (
	retryMin = 20 * time.Millisecond  // a host that died leaves its socket at once
	retryMax = 500 * time.Millisecond // four tries within DefaultSettle
)

// linkState is the state of a client's connection.
type linkState uint8

const (
	linkDown    linkState = iota // dials when retryAt comes
	linkDialing                  // the shell dials, or hosts and dials itself
	linkJoining                  // Hello sent; Ended, Pending and Roster may come
	linkUp                       // registered
)

// workState is a client's place in a reset; doc.go has the transitions.
type workState uint8

const (
	workStarting  workState = iota // holds nothing; not registered yet
	workRunning                    // holds the device
	workReleasing                  // told of a reset; holds the device in part
	workReleased                   // told of a reset; holds nothing
	workLeft                       // has said goodbye
)

// ClientConfig describes a client.
type ClientConfig struct {
	ID   ClientID // drawn at random, not 0
	Name string   // for people; cut and cleaned as by [CleanName]
	// Grace and Limit are those that the host is believed to have; zero: the
	// defaults. One that takes longer than they allow is silent.
	Grace, Limit time.Duration
}

// Client is a client's side of the coordinator. It is passive: one goroutine
// calls it. Make one with [NewClient].
type Client struct {
	id   ClientID
	name string
	conf Config // of the host, as far as a client goes by it

	link    linkState
	retryAt time.Time // when to dial; zero unless the link is down
	pause   time.Duration

	work   workState
	told   ID    // the reset that it takes part in; 0 in starting and running
	last   Ended // the last reset that it took part in
	wants  bool  // a request that no Pending has answered yet
	roster []Member
	vigil  vigil

	now time.Time      // of the Step under way
	out []ClientAction // of the Step under way
}

// NewClient returns a client that dials at its first Step.
func NewClient(now time.Time, conf ClientConfig) *Client {
	host := Config{Grace: conf.Grace, Limit: conf.Limit}.normal()
	return &Client{id: conf.ID, name: CleanName(conf.Name), conf: host, retryAt: now, pause: retryMin}
}

// Step applies an event at time now and appends what is to be done, in order, to
// out. Time must not run backwards from call to call. Step never blocks and
// keeps no reference to ev or out, only to the slices of a message.
func (c *Client) Step(now time.Time, ev ClientEvent, out []ClientAction) []ClientAction {
	c.now, c.out = now, out
	c.apply(ev)
	c.dialDue()
	_, heard := ev.(Heard)
	c.watch(heard)
	out, c.out = c.out, nil
	return out
}

// NextDeadline returns when Step must be called at the latest; false: not before
// the next event.
func (c *Client) NextDeadline() (time.Time, bool) {
	at := c.retryAt
	if at.IsZero() { // there is a host
		at = c.vigil.due
	}
	return at, !at.IsZero()
}

// Holds reports whether the client may hold resources of the device.
func (c *Client) Holds() bool { return c.work == workRunning || c.work == workReleasing }

func (c *Client) apply(ev ClientEvent) {
	if c.work == workLeft {
		return
	}
	switch ev := ev.(type) {
	case Connected:
		c.connected()
	case Disconnected:
		c.linkLost()
	case Heard:
		c.hear(ev.Msg)
	case WantReset:
		c.want()
	case Released:
		c.released(ev.Reset)
	case Stop:
		c.stop()
	case ClientTick:
	}
}

func (c *Client) emit(a ClientAction) { c.out = append(c.out, a) }

func (c *Client) send(m Message) { c.emit(Say{m}) }

// connected registers. An answer to an earlier dial, or none, is no answer.
func (c *Client) connected() {
	if c.link != linkDialing {
		return
	}
	c.link = linkJoining
	c.send(Hello{
		ID: c.id, Name: c.name, Holds: c.Holds(), Wants: c.wants,
		Told: c.told, Last: c.last, Roster: c.roster,
	})
}

// linkLost keeps the place in a reset; the next host is told of it.
func (c *Client) linkLost() {
	c.link = linkDown
	c.retryAt = c.now.Add(c.pause)
	c.pause = min(2*c.pause, retryMax)
}

func (c *Client) dialDue() {
	if c.link == linkDown && !c.retryAt.IsZero() && !c.retryAt.After(c.now) {
		c.link, c.retryAt = linkDialing, time.Time{}
		c.emit(Dial{})
	}
}

// hear applies a message of the host. One that has no place ends the connection.
func (c *Client) hear(m Message) {
	if c.link < linkJoining {
		return
	}
	switch m := m.(type) {
	case Roster:
		c.registered(m)
	case Pending:
		c.pending(m)
	case Ended:
		c.ended(m)
	default:
		c.hangUp()
	}
}

func (c *Client) hangUp() {
	c.emit(HangUp{})
	c.linkLost()
}

// registered takes the roster. The first one is the leave to open the device.
func (c *Client) registered(m Roster) {
	c.link, c.pause, c.roster = linkUp, retryMin, m.Members
	if c.work == workStarting {
		c.work = workRunning
		c.emit(Open{})
	}
}

func (c *Client) pending(m Pending) {
	if c.told != 0 || m.Reset == 0 || m.Reset == c.last.Reset {
		c.hangUp()
		return
	}
	c.work, c.told, c.wants = workReleasing, m.Reset, false
	c.emit(Release(m))
}

func (c *Client) ended(m Ended) {
	if c.told == 0 || m.Reset != c.told {
		c.hangUp()
		return
	}
	c.work, c.told = workRunning, 0
	c.last = Ended{Reset: m.Reset, Outcome: m.Outcome}
	c.emit(Restart{m})
}

// want requests a reset; while one is under way, that is the one.
func (c *Client) want() {
	if c.told != 0 || c.wants {
		return
	}
	c.wants = true
	if c.link >= linkJoining {
		c.send(Request{})
	}
}

// released says ready. A release that ended after its reset did is of no
// interest.
func (c *Client) released(id ID) {
	if c.work != workReleasing || id != c.told {
		return
	}
	c.work = workReleased
	if c.link >= linkJoining {
		c.send(Ready{Reset: id})
	}
}

// stop says goodbye. The shell has released everything.
func (c *Client) stop() {
	if c.link >= linkJoining {
		c.send(Leave{})
		c.emit(HangUp{})
	}
	c.work, c.link, c.retryAt = workLeft, linkDown, time.Time{}
}
