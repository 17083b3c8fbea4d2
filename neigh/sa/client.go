package sa

import "time"

// Source is a source of random numbers, for transactions and jitter. Transactions must not be guessed by others, so the
// caller seeds it from the system. [math/rand/v2.ChaCha8] is one.
type Source interface{ Uint64() uint64 }

// Config configures a client.
type Config struct {
	Random   Source
	MaxPaths int // at least 1; 0: DefaultMaxPaths
}

// Client asks the SA of one port. It is passive and must be used by one goroutine. Create it with [New].
//
// Its components point only to those above them.
type Client struct {
	step     step
	port     port
	requests requests
	service  service
	groups   groups
	paths    paths
}

// New returns a client of a port that is down.
func New(conf Config) *Client {
	if conf.MaxPaths <= 0 {
		conf.MaxPaths = DefaultMaxPaths
	}
	c := &Client{step: step{random: conf.Random}}
	s, p, q := &c.step, &c.port, &c.requests
	q.init(s, p)
	c.service.init(q)
	c.groups.init(s, p, q, &c.service)
	c.paths.init(s, p, q, conf.MaxPaths)
	return c
}

// Step applies an event at time now and appends the resulting actions to out. now must not decrease from call to call.
// Step never blocks and keeps no reference to the slices of ev or to out.
func (c *Client) Step(now time.Time, ev Event, out []Action) []Action {
	c.step.now, c.step.out = now, out
	c.requests.expire()
	switch ev := ev.(type) {
	case Port:
		c.view(ev)
	case PortDown:
		c.goDown()
	case Reregister:
		c.light()
	case SMChange:
		c.light()
	case LIDChange:
		c.normal()
	case KernelGroups:
		c.groups.kernelChanged(ev.MGIDs)
	case Received:
		c.requests.receive(ev)
	case SendFailed:
		c.requests.sendFailed(ev.TID)
	case Join:
		c.groups.join(ev)
	case Leave:
		c.groups.leave(ev)
	case WantPath:
		c.paths.want(ev.Key)
	case RefreshPath:
		c.paths.refresh(ev.Key)
	case Tick:
	}
	if c.service.news {
		c.service.news = false
		c.groups.settleAll(0)
	}
	c.requests.pump()
	out, c.step.out = c.step.out, nil
	return out
}

// NextDeadline returns the latest time for the next call of Step, or false if Step need not be called before the next
// event.
func (c *Client) NextDeadline() (time.Time, bool) {
	if len(c.requests.alarms.heap) == 0 {
		return time.Time{}, false
	}
	return c.requests.alarms.heap[0].at, true
}

// step is the Step under way, with the actions and counts of all components.
type step struct {
	now    time.Time
	out    []Action
	random Source
	stats  Stats // of all Steps
}

func (s *step) emit(a Action) { s.out = append(s.out, a) }

// upTo returns a random time from 0 to d.
func (s *step) upTo(d time.Duration) time.Duration {
	return time.Duration(s.random.Uint64() % uint64(d+1))
}

// jitter returns a random time within an eighth of d.
func (s *step) jitter(d time.Duration) time.Duration { return d - d/8 + s.upTo(d/4) }
