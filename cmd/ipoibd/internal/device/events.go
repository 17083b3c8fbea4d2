package device

import (
	"cmp"
	"errors"
	"log/slog"

	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/qprecovery"
)

// Watch calls f for each event of a QP or CQ until stop is called; f is never called after
// stop has returned. An object has one watcher. f must not block, nor call Watch or stop.
// Any goroutine may call Watch and stop.
func (s *Session) Watch(id hca.ObjectID, f func(hca.AsyncEvent)) (stop func()) {
	s.watching.Lock()
	defer s.watching.Unlock()
	s.watchers[id] = f
	return func() {
		s.watching.Lock()
		defer s.watching.Unlock()
		delete(s.watchers, id)
	}
}

// deliver calls the watcher of the object that an event concerns.
func (s *Session) deliver(ev hca.AsyncEvent) {
	s.watching.Lock()
	defer s.watching.Unlock()
	if f := s.watchers[ev.On]; f != nil {
		f(ev)
	}
}

// readEvents reads the async events of a session until its use ends, or the device has no more.
func (o *owner) readEvents(s *Session) {
	var last hca.AsyncEvent
	for {
		ev, err := s.NextEvent(s.use)
		if s.use.Err() != nil {
			return
		}
		if err != nil { // a device without events is as good as lost, whatever the reason
			class := qprecovery.OfVerbError(qprecovery.VerbGetAsyncEvent, err)
			if !class.OfDevice() {
				class = qprecovery.ClassDeviceError
			}
			o.fault(s, class)
			return
		}
		o.log.Log(s.use, eventLevel(ev, last), "async event", "type", ev.Type.String(), "num", ev.On.Num)
		last = ev
		s.deliver(ev)
		s.subnets.event(ev)
		// The users of queue pairs and CQs handle the events of those.
		switch class := qprecovery.OfEvent(ev.Type); class { //nolint:exhaustive // only events of the device itself
		case qprecovery.ClassPort:
			o.fault(s, class)
		case qprecovery.ClassDeviceError:
			o.fault(s, cmp.Or(s.blame(), class))
		}
	}
}

// blame returns the class of the error that the session has failed with, if it is one of the device: a
// call that hangs is no fatal event.
func (s *Session) blame() qprecovery.Class {
	var f *guard.Failure
	if errors.As(s.Err(), &f) {
		if class := qprecovery.OfError(qprecovery.VerbGetAsyncEvent, f.Cause); class.OfDevice() {
			return class
		}
	}
	return qprecovery.ClassSuccess
}

// fault reports an error or an event of a session to the machine.
func (o *owner) fault(s *Session, class qprecovery.Class) {
	o.tell(func(o *owner) { o.step(qprecovery.Fault{Gen: uint32(s.Instance), Class: class}) })
}

// eventLevel returns the level of an event's log message. Repetitions of CQ_ERR are only for
// debugging: rxe reports one for every completion that is lost, thousands of them
// (rxe_cq_post, drivers/infiniband/sw/rxe/rxe_cq.c).
func eventLevel(ev, last hca.AsyncEvent) slog.Level {
	switch {
	case ev == last && ev.Type == hca.EventCQErr, ev.Type == hca.EventGIDChange: // what follows from it is logged
		return slog.LevelDebug
	case ev.Type == hca.EventPortErr: // the link of the underlay is down
		return slog.LevelWarn
	}
	return slog.LevelInfo
}
