package e2e

import (
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// A hand-over that is refused, because one interface recovers for a long time, does not stop the others.
func TestRefusedHandOverStopsNothing(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	c := &host{Namespace: nstest.New(t), tb: t, number: 2, dir: shortDir(t)}
	a.addSecondDevice(c)
	other := *a // a, as seen by c
	other.number = 3
	b.join()
	c.join()
	a.joinTwice(&other, c)
	b.waitReaches(a)
	c.waitReaches(&other)
	p := b.probe(a)
	p.waitAnswered(t, recoveryLimit)
	a.daemon.inject(faultRequest{Kind: "client_dead", Device: "soft1"}, faultRequest{Kind: "device_fatal", Device: "soft1"})
	for range 2 { // without a pause, because nothing has stopped
		began := time.Now()
		next := a.launchHeir()
		<-next.exited
		next.ended = true
		if text := next.log.String(); next.err == nil || !strings.Contains(text, "cannot be handed over now: ") || !strings.Contains(text, "stop the running daemon") {
			t.Errorf("%v\n%s", next.err, text)
		}
		p.waitAnswered(t, recoveryLimit)
		if s := p.silence(began); s > apartLimit {
			t.Errorf("the other interface was silent for %v", s)
		}
	}
}

// Broadcasts arrive also while the daemon is handed over: one of the two processes is always a member of
// the IP group that carries them.
func TestHandOverLosesNoBroadcast(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const rate, unread = 2000, 700 // broadcasts a second, and how many may be on their way: fewer than the TAP's queue takes
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	for _, h := range hosts {
		h.join()
	}
	pingAll(a, b)
	var in, out *net.UDPConn
	var inErr, outErr error
	a.Do(func() { in, inErr = listenNumbered("0.0.0.0", numberedPort) })
	b.Do(func() {
		out, outErr = net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(10, 44, 0, 255), Port: numberedPort})
	})
	if err := errors.Join(inErr, outErr); err != nil {
		t.Fatal(err)
	}
	var received atomic.Uint64
	done, sent := make(chan struct{}), make(chan uint64)
	go func() {
		defer out.Close()
		tick := time.NewTicker(time.Second / rate)
		defer tick.Stop()
		for n := uint64(0); ; {
			select {
			case <-done:
				sent <- n
				return
			case <-tick.C:
			}
			if n-received.Load() >= unread { // a daemon waits for a processor
				continue
			}
			if _, err := out.Write(binary.BigEndian.AppendUint64(nil, n)); err != nil {
				t.Error(err)
			}
			n++
		}
	}()
	var reading sync.WaitGroup
	reading.Go(func() {
		seen := map[uint64]bool{}
		for msg := make([]byte, 8); ; received.Store(uint64(len(seen))) {
			if _, err := in.Read(msg); err != nil {
				return // closed
			}
			seen[binary.BigEndian.Uint64(msg)] = true
		}
	})
	defer reading.Wait()
	defer in.Close()
	before := a.book()
	for range form(20, 100) {
		a.handOver()
		time.Sleep(20 * time.Millisecond)
	}
	close(done)
	n := <-sent
	for end := time.Now().Add(repairLimit); received.Load() < n && time.Now().Before(end); { // on a busy machine, some wait in the socket
		time.Sleep(prompt)
	}
	t.Logf("%d of %d broadcasts received; %v", received.Load(), n, a.book().since(before).drops())
	if lost := n - received.Load(); lost > 0 {
		t.Errorf("%d of %d broadcasts were lost", lost, n)
	}
}
