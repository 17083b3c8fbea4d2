package e2e

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// The flood of one sender, and what it may cost. The machine is shared, so the limits are ten times, and four
// times, the goals.
const (
	senderFlood    = 20_000                 // messages/s
	senderBurst    = 600 * time.Millisecond // until the burst that the daemon admits is used up
	resolveTimes   = 12
	resolveEvery   = 100 * time.Millisecond
	goalResolution = 2.0  // times that without a flood
	goalSenderCPU  = 25.0 // per cent of a core
)

// A sender that floods a host with ARP from ever new queue pairs of one GID slows down neither the resolution
// of the host by others nor their traffic, and takes little of its processor.
func TestAbuseFloodOfOneSender(t *testing.T) {
	if nstest.EnterAlone(t) {
		return
	}
	floodFromOne(t, func(s *siege) (netip.Addr, func(packet)) {
		return s.mallory.addr, func(p packet) { s.mallory.send(s.a.underlay(), p) }
	})
}

// The same with the GID of an honest host that the flooded one uses, as another container of that host has it:
// it is resolved and answers as before.
func TestAbuseFloodWithTheGIDOfAPeerInUse(t *testing.T) {
	if nstest.EnterAlone(t) {
		return
	}
	floodFromOne(t, func(s *siege) (netip.Addr, func(packet)) {
		container := newMallory(s.b)
		return container.addr, func(p packet) { container.send(s.a.underlay(), p) }
	})
}

// floodFromOne floods a host by what attacker returns, the flooder's address on the underlay and how it sends.
func floodFromOne(t *testing.T, attacker func(*siege) (netip.Addr, func(packet))) {
	s := newSiege(t, join)
	from, send := attacker(s)
	resolve := func(to string) (median time.Duration, lost int) {
		var took []time.Duration
		for range resolveTimes {
			time.Sleep(resolveEvery)
			s.b.Run("ip", "neigh", "flush", "dev", ifName)
			began := time.Now()
			// A second later the kernel would repeat a request that was lost.
			if s.b.Command("ping", "-n", "-c", "1", "-W", "1", to).Run() != nil {
				lost++
				continue
			}
			took = append(took, time.Since(began))
		}
		if len(took) == 0 {
			t.Fatalf("%s is not resolved at all", to)
		}
		slices.Sort(took)
		return took[len(took)/2], lost
	}
	targets := []string{s.a.ip4(), s.a.ip6()}
	quiet := make([]time.Duration, len(targets))
	for i, to := range targets {
		quiet[i], _ = resolve(to)
	}

	stop, ended, sent := make(chan struct{}), make(chan struct{}), 0
	to := s.a.qp().QPN
	go func() {
		defer close(ended)
		for start := time.Now(); ; time.Sleep(time.Millisecond) {
			for due := int(time.Since(start).Seconds() * senderFlood); sent < due; sent++ {
				qpn := hca.QPN(0x100000 + sent)
				body := ipoib.ARP{Op: ipoib.ARPRequest, SHA: endpoint(qpn, from), SPA: addr("10.44.0.77"), TPA: addr("10.44.0.77")}
				p := rightPacket(to, message(ipoib.EtherTypeARP, body.Append(nil)))
				p.SrcQPN = qpn
				send(p)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	start, before := time.Now(), s.a.cpu()
	time.Sleep(senderBurst)
	for i, to := range targets {
		median, lost := resolve(to)
		t.Logf("a resolution of %s takes %v, %v without the flood (goal: %v times), %d failed", to, median, quiet[i], goalResolution, lost)
		if median > time.Duration(10*goalResolution*float64(quiet[i])) || lost > 1 {
			t.Errorf("%s: that exceeds the limits", to)
		}
	}
	percent := 100 * (s.a.cpu() - before).Seconds() / time.Since(start).Seconds()
	close(stop)
	<-ended
	dropped := s.a.iface().Counters["rx_drop_slow_path_limit"]
	t.Logf("%d messages in %v, %d of them dropped: %.0f %% of a core (goal: %v %%)", sent, time.Since(start).Round(time.Millisecond), dropped, percent, goalSenderCPU)
	if percent > 4*goalSenderCPU {
		t.Error("that exceeds the limit")
	}
	if dropped == 0 {
		t.Error("nothing was dropped")
	}
	s.end(floodLoss)
}
