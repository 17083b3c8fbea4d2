package device

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/qprecovery"
)

// Session is one opened instance of a device, which its users hold open.
type Session struct {
	hca.Device
	Instance uint64 // counts from 1; the generation of the device's machine

	guard      *guard.Device
	watchers   watchers
	stopEvents func() // ends the goroutine that reads the events, and waits for it

	abandonOnce sync.Once
	abandoned   chan struct{} // closed when the session stops waiting for its users

	mu      sync.Mutex // guards what follows
	users   []string   // by name, in order of arrival
	retired bool
	idle    chan struct{} // closed when the session is retired and has no users
}

func newSession(dev *guard.Device, instance uint64) *Session {
	return &Session{Device: dev, Instance: instance, guard: dev, idle: make(chan struct{}), abandoned: make(chan struct{})}
}

// Watch calls f for each event of a QP or CQ until stop is called; f is never called after
// stop has returned. f must not block, nor call Watch or stop.
// Any goroutine may call Watch and stop.
func (s *Session) Watch(id hca.ObjectID, f func(hca.AsyncEvent)) (stop func()) {
	return s.watchers.add(id, f)
}

// Fail moves the device to the error state at once (see [guard.Device.Fail]), so that no
// user waits for hardware any more. Only the first call has an effect.
func (s *Session) Fail(cause error) { s.guard.Fail(cause) }

// WireBlocked implements [hca.WireReporter].
func (s *Session) WireBlocked() uint64 { return s.guard.WireBlocked() }

// Strays implements [hca.StrayReporter].
func (s *Session) Strays() (hca.Strays, bool) { return s.guard.Strays() }

// Acquire adds a user, whose name appears in logs. It returns false if the session has ended.
func (s *Session) Acquire(who string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		return false
	}
	s.users = append(s.users, who)
	return true
}

// Release undoes an Acquire with the same name. Without one it does nothing.
func (s *Session) Release(who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.users, who); i >= 0 {
		s.users = slices.Delete(s.users, i, i+1)
		s.checkIdle()
	}
}

// retire ends the session: it accepts no new users, and idle is closed once the last
// user has released it.
func (s *Session) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
	s.checkIdle()
}

func (s *Session) checkIdle() {
	if s.retired && len(s.users) == 0 {
		close(s.idle)
	}
}

// abandon stops waiting for the users: their handles become zombies.
func (s *Session) abandon() {
	s.Fail(errAbandoned)
	s.abandonOnce.Do(func() { close(s.abandoned) })
}

// usedBy returns the names of the users.
func (s *Session) usedBy() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.users)
}

// watchers receive the events of single objects.
type watchers struct {
	mu   sync.Mutex // held while one is called, so that stop waits for it
	next uint64
	of   map[hca.ObjectID]map[uint64]func(hca.AsyncEvent)
}

func (w *watchers) add(id hca.ObjectID, f func(hca.AsyncEvent)) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[hca.ObjectID]map[uint64]func(hca.AsyncEvent){}
	}
	if w.of[id] == nil {
		w.of[id] = map[uint64]func(hca.AsyncEvent){}
	}
	n := w.next
	w.next++
	w.of[id][n] = f
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.of[id], n)
		if len(w.of[id]) == 0 {
			delete(w.of, id)
		}
	}
}

// call calls the watchers of the object that an event concerns.
func (w *watchers) call(ev hca.AsyncEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.of[ev.On] {
		f(ev)
	}
}

// startEvents reads the async events of a session until its stopEvents is called.
func (o *owner) startEvents(s *Session) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	s.stopEvents = func() { stop(); <-ended }
	go func() {
		defer close(ended)
		o.readEvents(ctx, s)
	}()
}

func (o *owner) readEvents(ctx context.Context, s *Session) {
	fault := func(c qprecovery.Class) {
		o.tell(func(o *owner) { o.step(qprecovery.Fault{Gen: uint32(s.Instance), Class: c}) })
	}
	var last hca.AsyncEvent
	for {
		ev, err := s.NextEvent(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil { // a device without events is as good as lost, whatever the reason
			class := qprecovery.OfVerbError(qprecovery.VerbGetAsyncEvent, err)
			if !class.OfDevice() {
				class = qprecovery.ClassDeviceError
			}
			fault(class)
			return
		}
		o.log.Log(ctx, eventLevel(ev, last), "async event", "type", ev.Type.String(), "num", ev.On.Num)
		last = ev
		s.watchers.call(ev)
		switch qprecovery.OfEvent(ev.Type) { //nolint:exhaustive // the users of queue pairs and CQs handle the events of those
		case qprecovery.ClassPort:
			ports, err := queryPorts(s)
			if err != nil {
				fault(qprecovery.OfVerbError(qprecovery.VerbQueryPort, err))
				continue
			}
			o.tell(func(o *owner) { o.portsChanged(s, ports) })
		case qprecovery.ClassDeviceError:
			fault(qprecovery.ClassDeviceError)
		}
	}
}

// portsChanged publishes the ports of the session, unless another one is open by now.
func (o *owner) portsChanged(s *Session, ports []hca.PortAttr) {
	if o.session == s {
		o.ports = ports
		o.publish(o.look())
	}
}

// eventLevel returns the level of an event's log message. Repetitions of CQ_ERR are only for
// debugging: rxe reports one for every completion that is lost, thousands of them
// (rxe_cq_post, drivers/infiniband/sw/rxe/rxe_cq.c).
func eventLevel(ev, last hca.AsyncEvent) slog.Level {
	switch {
	case ev == last && ev.Type == hca.EventCQErr:
		return slog.LevelDebug
	case ev.Type == hca.EventPortErr: // the link of the underlay is down
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// check queries port 1 through the open session, whether or not it has users (R8). The
// query may take 5 s, since it may wait for a lock of the host (guard.Options).
func (o *owner) check(gen uint32) {
	s := o.session
	o.work.Go(func() {
		_, err := s.QueryPort(1)
		class := qprecovery.OfVerbError(qprecovery.VerbQueryPort, err)
		if class.OfDevice() {
			o.log.Error("the periodic query of the device failed", "err", err)
		}
		o.tell(func(o *owner) { o.step(qprecovery.Checked{Gen: gen, Class: class}) })
	})
}
