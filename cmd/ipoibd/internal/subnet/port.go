package subnet

import (
	"cmp"
	"crypto/rand"
	"log/slog"
	"math"
	mrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"ipoibd/cmd/ipoibd/internal/endpoint"
	"ipoibd/hca"
	"ipoibd/hca/mad"
	"ipoibd/neigh/sa"
)

// reopenPause is the pause before a queue pair that has failed is opened again. A request that is lost meanwhile is
// repeated after at least half a second anyway.
const reopenPause = 500 * time.Millisecond

// flushLimit bounds the wait for the requests in the send queue at the end: they leave it within microseconds.
const flushLimit = 50 * time.Millisecond

// Session is what a port needs of an open device.
type Session interface {
	endpoint.Session
	// Err returns why the device has failed, or nil.
	Err() error
}

// Port asks the subnet administrator on behalf of the interfaces that use one port of a session. Any goroutine may call
// its methods, which do not block.
type Port struct {
	dev   Session
	num   uint8
	log   *slog.Logger
	ended chan struct{} // closed when the goroutine has closed everything
	onEnd func()        // what Open was called with; only its first call counts

	client *sa.Client // belongs to the goroutine

	mu        sync.Mutex // guards what follows
	wake      chan struct{}
	queue     *queue // in use; nil: none
	inbox     []sa.Event
	pkeyIndex uint16    // for MADs
	kernel    []hca.GID // the groups that the kernel's interfaces want
	users     []*User
	nextOwner sa.Owner
	stopped   bool
	trouble   error  // why there is no queue pair; nil: there is one, or it was never tried
	warned    string // the trouble that was logged last; "": none, or a MAD has arrived since
	stats     sa.Stats
}

// Open returns a port of an open device, whose view is attr, and calls ended when everything is closed after Stop or a
// failure of the device.
func Open(dev Session, num uint8, attr hca.PortAttr, log *slog.Logger, ended func()) *Port {
	var seed [32]byte
	_, _ = rand.Read(seed[:]) // never fails
	p := &Port{
		dev: dev, num: num, log: log.With("port", num), ended: make(chan struct{}), onEnd: sync.OnceFunc(ended),
		client: sa.New(sa.Config{Random: mrand.NewChaCha8(seed)}),
		wake:   make(chan struct{}, 1),
	}
	p.View(attr)
	go func() {
		defer p.onEnd()
		defer close(p.ended)
		p.run()
	}()
	return p
}

// Stop ends the port, whose objects are closed by its goroutine. If that hangs in the device, the device fails, and
// another goroutine closes them.
func (p *Port) Stop() {
	p.mu.Lock()
	p.stopped = true
	q := p.queue
	p.mu.Unlock()
	p.stir()
	if q == nil || p.dev.Attr().NeverBlocks {
		return
	}
	go func() {
		if err := q.by.Await(p.ended); err != nil {
			p.log.Error("the queue pair to the subnet administrator hangs", "err", err)
			_ = q.close() // in error state nothing is refused
			p.onEnd()
		}
	}()
}

// View reports the present attributes of the port.
func (p *Port) View(attr hca.PortAttr) {
	view := sa.Port{
		State: attr.State, LID: attr.LID, SMLID: attr.SMLID, SMSL: attr.SMSL,
		SubnetTimeout: mad.TimeCode(attr.SubnetTimeout), PKeys: attr.PKeys,
	}
	if len(attr.GIDs) > 0 {
		view.GID = attr.GIDs[0].GID
	}
	p.mu.Lock()
	p.pkeyIndex = defaultPKeyIndex(attr.PKeys)
	changed := !slices.Equal(p.kernel, attr.KernelGroups)
	p.kernel = attr.KernelGroups
	p.mu.Unlock()
	p.put(view)
	if changed {
		p.put(sa.KernelGroups{MGIDs: attr.KernelGroups})
	}
}

// defaultPKeyIndex returns the index of the default partition, preferably as a full member. MADs belong to no other.
func defaultPKeyIndex(table []hca.PKey) uint16 {
	for _, key := range []hca.PKey{hca.PKeyDefault, hca.PKeyDefault &^ hca.PKeyMembership} {
		if i := slices.Index(table, key); i >= 0 && i <= math.MaxUint16 {
			return uint16(i)
		}
	}
	return 0
}

// Event reports an async event of the port.
func (p *Port) Event(t hca.EventType) {
	switch t { //nolint:exhaustive // others show in the attributes
	case hca.EventPortErr:
		p.put(sa.PortDown{})
	case hca.EventClientReregister:
		p.put(sa.Reregister{})
	case hca.EventSMChange:
		p.put(sa.SMChange{})
	case hca.EventLIDChange:
		p.put(sa.LIDChange{})
	}
}

// Stats returns the counters of the client.
func (p *Port) Stats() sa.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// put passes events to the client.
func (p *Port) put(evs ...sa.Event) {
	p.mu.Lock()
	p.inbox = append(p.inbox, evs...)
	p.mu.Unlock()
	p.stir()
}

// stir wakes the goroutine, wherever it waits.
func (p *Port) stir() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue != nil {
		p.queue.by.CQ.Wake()
	}
}

// take returns the events since the last call, and whether the port was stopped.
func (p *Port) take() (evs []sa.Event, stopped bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	evs, p.inbox = p.inbox, nil
	return evs, p.stopped
}

func (p *Port) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		p.mu.Lock()
		index := p.pkeyIndex
		p.mu.Unlock()
		q, err := openQueue(p.dev, p.num, index)
		if err == nil {
			if p.use(q) {
				err = p.serve(q, index)
			}
			p.use(nil)
			err = cmp.Or(err, q.close())
		}
		if p.dev.Err() != nil {
			return
		}
		p.fail(err)
		timer.Reset(reopenPause)
		for waiting := true; waiting; {
			evs, stopped := p.take()
			if stopped || p.dev.Err() != nil {
				return
			}
			for _, ev := range evs {
				_ = p.step(nil, ev) // nothing can be sent
			}
			select {
			case <-p.wake:
			case <-timer.C:
				waiting = false
			}
		}
	}
}

// use makes a queue pair the one that stir wakes, and for whose calls Stop waits. It returns false if the port was
// stopped.
func (p *Port) use(q *queue) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue = q; q != nil {
		p.trouble = nil
	}
	return !p.stopped
}

// fail keeps why there is no queue pair. It logs a trouble once, also if a queue pair fails again and again.
func (p *Port) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trouble = err; err != nil && p.warned != err.Error() {
		p.warned = err.Error()
		p.log.Warn("cannot ask the subnet administrator; retrying", "err", err)
	}
}

// serve runs the client on a queue pair until the port is stopped, or the queue pair has to be opened again.
func (p *Port) serve(q *queue, pkeyIndex uint16) error {
	if err := q.receive(receiveIDs()...); err != nil {
		return err
	}
	for {
		evs, stopped := p.take()
		var failed error
		for _, ev := range append(evs, sa.Tick{}) { // all of them, also if one cannot be sent
			failed = cmp.Or(failed, p.step(q, ev))
		}
		if failed != nil {
			return failed
		}
		if stopped { // the users have just left their groups
			return q.flush(time.Now().Add(flushLimit))
		}
		p.mu.Lock()
		moved := p.pkeyIndex != pkeyIndex
		p.mu.Unlock()
		if moved {
			return nil
		}
		if err := q.by.CQ.Arm(); err != nil {
			return err
		}
		n, err := q.poll(func(ev sa.Event) { failed = cmp.Or(failed, p.step(q, ev)) })
		if err = cmp.Or(err, failed); err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		until, _ := p.client.NextDeadline()
		if err := q.by.CQ.Wait(until); err != nil {
			return err
		}
	}
}

// step passes an event to the client, and carries out its actions. Without a queue pair nothing is sent.
func (p *Port) step(q *queue, ev sa.Event) error {
	var failed error
	for evs := []sa.Event{ev}; len(evs) > 0; evs = evs[1:] {
		for _, a := range p.client.Step(time.Now(), evs[0], nil) {
			s, ok := a.(sa.Send)
			if !ok {
				p.deliver(a)
				continue
			}
			posted := false
			if q != nil && failed == nil {
				posted, failed = q.send(s)
			}
			if !posted {
				evs = append(evs, sa.SendFailed{TID: s.TID})
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	answered := p.stats.Answered
	if p.stats = p.client.Stats(); p.stats.Answered > answered {
		p.warned = ""
	}
	return failed
}
