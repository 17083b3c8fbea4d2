package device

import (
	"context"
	"log/slog"

	"ipoibd/hca"
	"ipoibd/qprecovery"
)

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
	var last hca.AsyncEvent
	for {
		ev, err := s.NextEvent(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			o.eventsFailed(s, err)
			return
		}
		o.log.Log(ctx, eventLevel(ev, last), "async event", "type", ev.Type.String(), "num", ev.On.Num)
		last = ev
		s.watchers.tell(ev)
		o.handleEvent(s, ev)
	}
}

// eventLevel returns the level of an event's log message. Repetitions of CQ_ERR are only for
// debugging: rxe has one for every completion that is lost, thousands of them (rxe_cq_post,
// drivers/infiniband/sw/rxe/rxe_cq.c).
func eventLevel(ev, last hca.AsyncEvent) slog.Level {
	switch {
	case ev == last && ev.Type == hca.EventCQErr:
		return slog.LevelDebug
	case ev.Type == hca.EventPortErr: // the link of the underlay is down
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// eventsFailed reports a device without events: it is as good as lost, whatever the
// reason.
func (o *owner) eventsFailed(s *Session, err error) {
	class := Classify(qprecovery.VerbGetAsyncEvent, err)
	if !class.OfDevice() {
		class = qprecovery.ClassDeviceError
	}
	o.fault(s, class)
}

// handleEvent handles the events of ports and of the device. Those of queue pairs and CQs
// are handled by their users.
func (o *owner) handleEvent(s *Session, ev hca.AsyncEvent) {
	switch qprecovery.OfEvent(ev.Type) { //nolint:exhaustive // the other classes are no affair of the device
	case qprecovery.ClassPort:
		o.askPorts(s)
	case qprecovery.ClassDeviceError:
		o.fault(s, qprecovery.ClassDeviceError)
	}
}

func (o *owner) askPorts(s *Session) {
	ports, err := queryPorts(s)
	if err != nil {
		o.fault(s, Classify(qprecovery.VerbQueryPort, err))
		return
	}
	o.tell(func(o *owner) { o.portsChanged(s, ports) })
}

// check queries port 1 through the open session, whether or not anyone uses it (R8).
// The query has 5 s, since it may wait for a lock of the host (guard.Options).
func (o *owner) check(gen uint32) {
	s := o.session
	o.work.Go(func() {
		_, err := s.QueryPort(1)
		class := Classify(qprecovery.VerbQueryPort, err)
		if class.OfDevice() {
			o.log.Error("the periodic query of the device failed", "err", err)
		}
		o.tell(func(o *owner) { o.step(qprecovery.Checked{Gen: gen, Class: class}) })
	})
}

func (o *owner) fault(s *Session, c qprecovery.Class) {
	o.tell(func(o *owner) { o.step(qprecovery.Fault{Gen: uint32(s.Instance), Class: c}) })
}

func (o *owner) portsChanged(s *Session, ports []hca.PortAttr) {
	if o.session == s {
		o.ports = ports
		o.publish(o.look())
	}
}

func queryPorts(s *Session) ([]hca.PortAttr, error) {
	ports := make([]hca.PortAttr, s.Attr().Ports)
	for i := range ports {
		var err error
		if ports[i], err = s.QueryPort(uint8(i + 1)); err != nil {
			return nil, err
		}
	}
	return ports, nil
}
