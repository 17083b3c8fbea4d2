package neigh

// restore adds the peers of a former table, as far as the bounds allow. The rest is heard again.
func (t *Table) restore(list []PeerInfo) {
	for _, info := range list {
		e := endpoint{info.GID, info.QPN}
		class, most := &t.peers.heard, t.conf.MaxHeard
		if info.Used {
			class, most = &t.peers.used, t.conf.MaxPeers-t.conf.MaxHeard
		}
		switch {
		case !e.valid() || info.MAC.IsZero() || info.MAC.IsMulticast():
			continue
		case t.peers.byEndpoint[e] != nil || t.macTaken(info.MAC):
			continue
		case class.Len() >= most || len(t.peers.byGID[e.gid]) >= maxPeersPerGID:
			continue
		}
		p := &peer{endpoint: e, mac: info.MAC, used: info.Used, seen: t.step.now, sentAt: info.Sent, heardAt: info.Heard}
		p.sent.bytes.Store(info.SentBytes)
		p.heard.bytes.Store(info.HeardBytes)
		t.peers.add(p)
		for _, ip := range info.IPs {
			if isUnicast(ip) && t.peers.byIP[ip] == nil {
				t.peers.bind(ip, p)
			}
		}
		if t.view.show(p); p.used {
			t.ready = append(t.ready, p)
		}
	}
}

// askRestored requests the handles of the restored peers that the host has sent data to, so that the
// frames that already wait need not pass the slow path.
func (t *Table) askRestored() {
	for _, p := range t.ready {
		if t.peers.byEndpoint[p.endpoint] == p && p.handle.state == handleNone {
			t.handles.becomeAsked(p)
		}
	}
	t.ready = nil
}

// Asked returns how many handles are requested and not made yet.
func (t *Table) Asked() int { return len(t.handles.asked) }

// Shown reports whether the last snapshot has all changes.
func (t *Table) Shown() bool { return !t.view.dirty }
