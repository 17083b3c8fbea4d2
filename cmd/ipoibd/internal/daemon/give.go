package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/handover"
	"ipoibd/cmd/ipoibd/internal/iface"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/systemd"
	"ipoibd/link/kernel"
	"ipoibd/qprecovery"
)

// Limits of a hand-over.
const (
	// settleLimit bounds the wait until no interface and no device has anything else under way. Traffic
	// flows meanwhile.
	settleLimit = 2 * time.Second
	// settlePause is the pause before they are asked again.
	settlePause = 2 * time.Millisecond
	// givePause is the minimum time between a hand-over that failed after traffic had stopped for it and the
	// next one. Otherwise a program that asks and then stalls could stop traffic most of the time.
	givePause = 10 * time.Second
	// standLimit bounds how long traffic stands still, from when the first interface parks until the taker
	// has everything. It takes some 10 ms, or ten times as long on a busy machine.
	standLimit = 3 * time.Second
)

// estate is what one process hands over to another. The descriptors are those of the control socket,
// of the metrics if Metrics is set, of devices and interfaces, FDs of each, and then Inhibitors of the system's
// sleep.
type estate struct {
	Config     config.Config // without the interfaces that have failed
	Metrics    bool
	Asleep     bool // the devices are suspended
	Resting    bool // by the operator
	Journal    []journal.Entry
	Systemd    systemd.Handed
	Left       map[string]json.RawMessage // interfaces that were added at run time and do not run: see daemon.takeBack
	Devices    []estateDevice             // as in Config
	Interfaces []estateInterface          // as in Config
	Inhibitors int
}

type estateDevice struct {
	FDs    int
	HCA    backend.Handed
	Before counted
	Ladder qprecovery.HandedDevice
}

type estateInterface struct {
	FDs   int
	State iface.State
}

// counted is what processes have counted of a device.
type counted struct {
	Counters report.Totals
	Drops    uint64
	Opens    uint64
	Recovery *report.Recovery
}

// addTo adds the counts to a report of the device.
func (c *counted) addTo(r *report.Device) {
	r.Counters.AddTotals(c.Counters)
	r.Drops += c.Drops
	r.Opens += c.Opens
	r.Recovery = r.Recovery.After(c.Recovery)
}

// parked is a daemon that waits, because another process may continue everything.
type parked struct {
	ifaces  []*iface.Parked
	devices []parkedDevice
}

type parkedDevice struct {
	*managed
	*device.Parked
	paused bool // it does not receive
}

// HandOver implements control.Daemon.
func (d *daemon) HandOver(accept func() (*net.UnixConn, error)) error {
	select {
	case d.changing <- struct{}{}:
	default:
		return fmt.Errorf("%w: a change of the configuration or another hand-over is under way, or the daemon is stopping", control.ErrUnavailable)
	}
	defer func() { <-d.changing }()
	if d.running.Err() != nil {
		return errStopping
	}
	if err := d.lastGive.allows(time.Now()); err != nil {
		return err
	}
	conn, err := accept()
	if err != nil {
		return err
	}
	g, err := handover.Give(conn)
	if err != nil {
		d.opts.Log.Warn("not handed over", "err", err)
		return nil
	}
	began := time.Now()
	if err := d.give(g); err != nil {
		d.opts.Log.Error("hand-over failed; this process continues; if the new one cannot take over, stop this one and start the new one instead", "to", g.PID, "err", err, "after", time.Since(began))
		d.journal.Add(journal.Entry{Scope: "daemon", Kind: journal.KindNote, Text: fmt.Sprintf("not handed over to process %d: %v", g.PID, err)})
		return nil
	}
	d.opts.Log.Info("handed over", "to", g.PID, "after", time.Since(began))
	if err := systemd.Succeed(g.PID); err != nil {
		d.opts.Log.Warn("systemd: cannot name the new process as the main process, so systemd may stop it with the service; if it does, run 'systemctl start ipoibd'", "err", err)
	}
	d.end(nil) // before d.changing is free
	return nil
}

// failedGive is the last hand-over that failed after traffic had stopped for it.
type failedGive struct {
	giver *handover.Giver // nil: there was none
	at    time.Time
}

// allows returns why no other hand-over may begin now, or nil.
func (f failedGive) allows(now time.Time) error {
	if f.giver == nil {
		return nil
	}
	select {
	case <-f.giver.Done():
	default: // it has the descriptors, and does not know that it must not use them
		return fmt.Errorf("%w: process %d has not noticed yet that its take-over failed; end it", control.ErrUnavailable, f.giver.PID)
	}
	if left := f.at.Add(givePause).Sub(now); left > 0 {
		return fmt.Errorf("%w: the last hand-over, to process %d, failed (see the log); try again in %s", control.ErrUnavailable, f.giver.PID, max(left, time.Second).Round(time.Second))
	}
	return nil
}

// give stops everything at a boundary, and offers it. After an error it continues.
func (d *daemon) give(g *handover.Giver) error {
	within, cancel := context.WithTimeout(d.running, settleLimit)
	defer cancel()
	if err := d.settle(within); err != nil {
		g.Withdraw(err)
		return err
	}
	d.pauseServers() // first, so that no client sees what has stopped
	p, limit, err := d.parkAll(within)
	var e estate
	var fds []int
	if err == nil {
		e, fds, err = d.estate(p)
	}
	if err == nil {
		err = g.Offer(e, fds, limit)
	}
	kernel.CloseAll(fds)
	if err != nil {
		p.resume()
		d.resumeServers()
		g.Withdraw(err)
		d.lastGive = failedGive{g, time.Now()}
		return err
	}
	d.given.Store(true)
	d.control.GiveUp()
	p.leave()
	return nil
}

// settle waits until all interfaces and devices can be handed over, without stopping any.
func (d *daemon) settle(ctx context.Context) error {
	var unsettled error // the last reason to wait
	for {
		err := d.canPark(ctx)
		switch {
		case isUnsettled(err):
			unsettled = err
		case err != nil && ctx.Err() != nil && unsettled != nil: // the time ended while it asked again
			return unsettled
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(settlePause):
		}
	}
}

// isUnsettled reports whether what could not be parked may be parked in a moment.
func isUnsettled(err error) bool {
	return errors.Is(err, iface.ErrUnsettled) || errors.Is(err, device.ErrUnsettled)
}

// canPark returns why an interface or a device cannot be parked now.
func (d *daemon) canPark(ctx context.Context) error {
	devices, _ := d.lists()
	for _, m := range d.working() {
		if err := m.CanPark(ctx); err != nil {
			return fmt.Errorf("interface %s: %w", m.Name(), err)
		}
	}
	for _, dev := range devices {
		if err := dev.CanPark(ctx); err != nil {
			return fmt.Errorf("device %s: %w", dev.name, err)
		}
	}
	return nil
}

// working returns the interfaces that have not failed.
func (d *daemon) working() (all []*member) {
	_, ifaces := d.lists()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range ifaces {
		if m.failure == nil {
			all = append(all, m)
		}
	}
	return all
}

// parkAll parks everything, and returns until when it may stand still. If a part has begun to change its
// state since it was asked, the others continue until that change has ended.
func (d *daemon) parkAll(ctx context.Context) (p *parked, limit time.Time, err error) {
	for {
		limit = time.Now().Add(standLimit)
		if p, err = d.park(ctx); !isUnsettled(err) || ctx.Err() != nil {
			return p, limit, err
		}
		p.resume()
		if err = d.settle(ctx); err != nil {
			return &parked{}, limit, err
		}
	}
}

func (d *daemon) pauseServers() {
	var both sync.WaitGroup
	both.Go(d.control.Pause)
	if d.metrics != nil {
		both.Go(d.metrics.Pause)
	}
	both.Wait()
}

func (d *daemon) resumeServers() {
	d.control.Resume()
	if d.metrics != nil {
		d.metrics.Resume()
	}
}

// park parks interfaces, and then devices: they receive until all interfaces have stopped sending, so
// that what one sends to another still arrives. After an error, some of them are parked.
func (d *daemon) park(ctx context.Context) (*parked, error) {
	p := &parked{}
	devices, _ := d.lists()
	for _, m := range d.working() {
		held, err := m.Park(ctx)
		if err != nil {
			return p, fmt.Errorf("interface %s: %w", m.Name(), err)
		}
		p.ifaces = append(p.ifaces, held)
	}
	for _, dev := range devices {
		held, err := dev.Park(ctx)
		if err != nil {
			return p, fmt.Errorf("device %s: %w", dev.name, err)
		}
		p.devices = append(p.devices, parkedDevice{managed: dev, Parked: held})
	}
	for i := range p.devices {
		dev := &p.devices[i]
		if err := dev.slot.Pause(); err != nil {
			return p, fmt.Errorf("device %s: %w", dev.name, err)
		}
		dev.paused = true
	}
	return p, nil
}

// resume continues what was parked.
func (p *parked) resume() {
	for _, dev := range p.devices {
		if dev.paused {
			dev.slot.Resume()
		}
		dev.Release()
	}
	for _, held := range p.ifaces {
		held.Resume()
	}
}

// leave ends what was parked without an effect on what another process continues.
func (p *parked) leave() {
	for _, dev := range p.devices {
		dev.slot.GiveUp()
	}
	for _, held := range p.ifaces {
		held.Leave()
	}
	for _, dev := range p.devices {
		dev.Release()
	}
}

// estate returns everything that was parked, with descriptors, which the caller closes, also after an
// error.
func (d *daemon) estate(p *parked) (e estate, fds []int, err error) {
	e.Config, e.Left, e.Systemd = *d.works(), d.left, systemd.HandOver()
	listeners := []net.Listener{d.control.Listener()}
	if e.Metrics = d.metrics != nil; e.Metrics {
		listeners = append(listeners, d.metrics.Listener())
	}
	for _, l := range listeners {
		socket, ok := l.(syscall.Conn)
		if !ok {
			return e, fds, fmt.Errorf("a %T has no descriptor", l)
		}
		fd, err := kernel.Duplicate(socket)
		if err != nil {
			return e, fds, err
		}
		fds = append(fds, fd)
	}
	e.Interfaces = make([]estateInterface, len(p.ifaces))
	ofIfaces, errs := make([][]int, len(p.ifaces)), make([]error, len(p.ifaces)+1)
	var all sync.WaitGroup
	for i, held := range p.ifaces {
		all.Go(func() {
			e.Interfaces[i].State, ofIfaces[i], errs[i] = held.State()
			e.Interfaces[i].FDs = len(ofIfaces[i])
		})
	}
	all.Wait()
	for _, dev := range p.devices { // after the interfaces, whose last messages it has sent
		r, own, err := d.reportOf(dev.managed, time.Now()), []int(nil), error(nil)
		x := estateDevice{Before: counted{report.TotalsOf(r.Counters), r.Drops, r.Opens, r.Recovery.Past()}, Ladder: dev.Ladder}
		x.HCA, own, err = dev.slot.HandOver()
		errs[len(p.ifaces)] = errors.Join(errs[len(p.ifaces)], err)
		x.FDs, fds = len(own), append(fds, own...)
		e.Devices = append(e.Devices, x)
	}
	for _, own := range ofIfaces {
		fds = append(fds, own...)
	}
	inhibitors, err := d.inhibitor.HandOver()
	e.Inhibitors, fds = len(inhibitors), append(fds, inhibitors...)
	errs = append(errs, err)
	d.mu.Lock()
	e.Asleep = d.asleep
	d.mu.Unlock()
	e.Resting, e.Journal = d.resting.Load(), d.journal.Since(0)
	return e, fds, errors.Join(errs...)
}
