package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/soft/udp"
	"ipoibd/link"
	"ipoibd/link/kernel"
)

// Query says what to examine.
type Query struct {
	Version          string         // of this program
	Config           *config.Config // of a start; nil if there is none, and Mistake says why
	Mistake          error
	UnknownVariables []string
	Control          string        // path of the control socket
	Watch            time.Duration // how long to watch the counters of a running daemon
	OpenRDMA         func(name string) (hca.Device, error)
}

// maxListedByDaemon bounds the devices, and the interfaces, of a status that is examined: more than a
// host can have, few enough to compare each with each.
const maxListedByDaemon = 4096

// connectLimit bounds the connection to the control socket. The limits of requests are those of
// package control, and those of other programs are in probe.go.
const connectLimit = time.Second

// Gather collects the facts. It changes nothing; without a daemon, it binds the UDP port for a
// moment, as 'ipoibd devices' does. The error says what could not be examined. It takes a few
// seconds and the time to watch; if the daemon hangs, 6 s.
func Gather(ctx context.Context, q Query) (Facts, error) {
	f := Facts{Version: q.Version, Mistake: q.Mistake, UnknownVariables: q.UnknownVariables}
	f.Socket = examineSocket(ctx, q.Control)
	f.Service = examineService(ctx, q.Control)
	var neighErr, netErr, processErr error
	f.NeighboursEarlier, neighErr = neighbourTables()
	err := f.ask(ctx, q)
	if neighErr == nil {
		f.Neighbours, neighErr = neighbourTables()
	}
	f.Netdevs, netErr = netdevs()
	f.Process, processErr = examineProcess(f.Socket.PID)
	if f.Socket.PID != 0 {
		processErr = nil // it may be in another PID namespace, or have ended
	}
	if f.Status == nil && q.Config != nil {
		f.Devices, f.Interfaces = FromConfig(q.Config)
	}
	if !f.started() {
		f.Control = checkControl(q.Control)
		f.Tun = link.CheckTun()
		f.tryStart(q)
	}
	if f.Status != nil {
		f.Devices, f.Interfaces = FromStatus(f.Status)
		f.ClockStep = clockStep(f.Socket.PID, f.Status.Started)
		f.findHolders()
	}
	f.Drops = firewallDrops(ctx)
	return f, errors.Join(err, neighErr, netErr, processErr)
}

// examineSocket looks at the control socket, and connects to it.
func examineSocket(ctx context.Context, path string) Socket {
	s := Socket{Path: path}
	switch st, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return s
	case err != nil:
		s.State, s.Err = SocketDenied, err
		return s
	case st.Mode().Type() != fs.ModeSocket:
		s.State, s.Err = SocketBlocked, fmt.Errorf("%s is not a socket, but has the mode %s", path, st.Mode())
		return s
	}
	conn, err := (&net.Dialer{Timeout: connectLimit}).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		s.State, s.PID = SocketAnswers, listener(conn)
		_ = conn.Close()
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		s.State, s.Err = SocketStale, fmt.Errorf("no process listens on %s", path)
	case errors.Is(err, fs.ErrPermission):
		s.State, s.Err = SocketDenied, err
	default: // its queue of connections is full
		s.State, s.Err = SocketHangs, err
	}
	return s
}

// listener returns the PID of the process at the other end, or 0 if it is in another PID namespace.
func listener(conn net.Conn) (pid int) {
	peer, err := kernel.Peer(conn.(syscall.Conn))
	if err != nil {
		return 0
	}
	return int(peer.Pid)
}

// ask requests the status twice, with the time to watch in between.
func (f *Facts) ask(ctx context.Context, q Query) error {
	if f.Socket.State != SocketAnswers {
		return nil
	}
	first, err := control.GetStatus(ctx, q.Control)
	switch {
	case err != nil:
	case len(first.Interfaces) > maxListedByDaemon || len(first.Devices) > maxListedByDaemon:
		err = fmt.Errorf("its status has %d devices and %d interfaces, more than any daemon has", len(first.Devices), len(first.Interfaces))
	case first.SchemaVersion != report.SchemaVersion:
		err = fmt.Errorf("its status has the schema version %d, but this program knows only %d", first.SchemaVersion, report.SchemaVersion)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, control.ErrHangs), errors.Is(err, context.DeadlineExceeded): // no answer, or one that never ends
		f.Socket.State, f.Socket.Err, f.Socket.Stopped = SocketHangs, err, isStopped(f.Socket.PID)
		return nil
	case errors.Is(err, fs.ErrPermission):
		f.Socket.State, f.Socket.Err = SocketDenied, err
		return nil
	case err != nil:
		f.Socket.State, f.Socket.Err = SocketGarbage, err
		return nil
	}
	f.Status = first
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(q.Watch):
	}
	second, err := control.GetStatus(ctx, q.Control)
	if err != nil {
		return fmt.Errorf("the daemon no longer answers: %w", err)
	}
	f.Earlier, f.Status, f.Watched = first, second, second.Time.Sub(first.Time).Round(time.Millisecond)
	return nil
}

// tryStart finds out what a start would find.
func (f *Facts) tryStart(q Query) {
	for i := range f.Interfaces {
		f.Interfaces[i].Available = link.Available(f.Interfaces[i].Name)
	}
	for i := range f.Devices {
		d := &f.Devices[i]
		if !d.Software {
			d.inventory(q)
			continue
		}
		if d.Underlay == "" {
			d.Underlay, d.Unclear = udp.DefaultNetdev()
		}
		if n := f.netdev(d.Underlay); n != nil && !n.Loopback {
			d.Bind = backend.Local(q.OpenRDMA, d.Underlay).Bind(d.Underlay)
		}
	}
}

// inventory looks a real HCA up in the list of 'ipoibd devices'.
func (d *Device) inventory(q Query) {
	s := backend.Local(q.OpenRDMA, "")
	s.Netdev = func() (string, error) { return "", hca.ErrNoDevice } // leaves the software HCA alone
	entries, err := s.Take()
	if err != nil {
		d.Trouble = append(d.Trouble, err.Error())
	}
	d.Missing = err == nil
	for _, e := range entries {
		if e.Kind == backend.KindSoftware {
			continue
		}
		d.Present = append(d.Present, e.Name)
		if e.Name != d.HCA {
			continue
		}
		d.Missing = false
		d.Trouble = append(d.Trouble, e.Trouble...)
		for _, p := range e.Ports {
			for _, t := range p.Trouble {
				d.Trouble = append(d.Trouble, fmt.Sprintf("port %d: %s", p.Num, t))
			}
		}
	}
}

// findHolders finds the other processes with a queue of an interface whose daemon has noticed one.
func (f *Facts) findHolders() {
	for i := range f.Status.Interfaces {
		if s := &f.Status.Interfaces[i]; s.Reason == report.ReasonForeign {
			f.Interfaces[i].Holders = tapHolders(s.Name, f.Socket.PID)
		}
	}
}
