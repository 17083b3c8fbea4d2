package reset

import "time"

const (
	// answerMargin is what a host may take besides its own times: the way of its
	// word, and a turn in which it has much to do.
	answerMargin = time.Second
	// lateStep tells a Step that came late from one in time. A process that was
	// stopped itself has not read yet what the host said meanwhile.
	lateStep = 100 * time.Millisecond
)

// vigil is a client's watch over what its host owes it. It only tells: no other
// state depends on it. A silence that ends with the connection is not told of.
type vigil struct {
	patience time.Duration // with what is owed now; 0: nothing is
	since    time.Time     // when that began, or a message came last
	due      time.Time     // when the host counts as silent; zero: it does, or owes nothing
	silent   bool          // HostSilent was said
}

// patience is how long a host may take for what it owes now: the roster and the
// word that a reset is pending come at once from one that runs at all, the end
// of a reset after its times.
func (c *Client) patience() time.Duration {
	switch {
	case c.link < linkJoining:
		return 0
	case c.link == linkJoining, c.wants:
		return c.conf.Grace
	case c.told != 0:
		return c.conf.Grace + c.conf.Limit + answerMargin
	default:
		return 0
	}
}

// watch begins anew when the host was heard, or owes something else.
func (c *Client) watch(heard bool) {
	v := &c.vigil
	if heard && v.silent {
		c.emit(HostAnswers{})
	}
	if patience := c.patience(); heard || patience != v.patience {
		*v = vigil{patience: patience, since: c.now}
		if patience > 0 {
			v.due = c.now.Add(patience)
		}
	}
	c.judge()
}

// judge tells of a host that let its time pass; see lateStep.
func (c *Client) judge() {
	v := &c.vigil
	switch late := c.now.Sub(v.due); {
	case v.due.IsZero() || late < 0:
	case late > lateStep:
		v.due = c.now.Add(answerMargin)
	default:
		v.due, v.silent = time.Time{}, true
		c.emit(HostSilent{Since: v.since})
	}
}
