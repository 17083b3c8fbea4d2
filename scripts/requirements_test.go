package scripts_test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

var update = flag.Bool("update", false, "rewrite "+requirementsPage)

const requirementsPage = "qprecovery/README.md"

// requirements states in a sentence what recovery must do, and names the tests that
// show it best, most readable first: the folder and the name of a test, of a
// subtest R01/x, or of a transcript testdata/R01-x.txt. R1 is at index 1. A requirement
// with a chapter begins one.
var requirements = [...]struct {
	says    string
	best    []string
	chapter string
}{
	1:  {says: "A CQ error rebuilds the CQ and every QP on it; no smaller step is tried.", best: []string{"qprecovery/R01/cq-error", "scripts/vm/TestR01R02R25Failures"}, chapter: "What failed determines what is rebuilt"},
	2:  {says: "A failed work request concerns only the QP. The QP is queried; from SQE it is resumed, from ERR it is reset, and if the error soon repeats it is recreated.", best: []string{"qprecovery/R02/request-error", "qprecovery/R02/again-soon", "scripts/e2e/R02/send_error_err"}},
	3:  {says: "A work-request error is local. It never leads above the CQ rung, and is logged with its request.", best: []string{"qprecovery/R03/descriptor", "cmd/ipoibd/internal/iface/TestR03RequestIsDescribed"}},
	4:  {says: "Flushed completions return buffers and escalate nothing. After a flush without a cause the QP is queried, once per incident.", best: []string{"qprecovery/R04/flush", "scripts/e2e/R04/send_flush_err"}},
	5:  {says: "Every completion status, event and errno of a verb has exactly one class.", best: []string{"qprecovery/TestR05Completions", "qprecovery/TestR05Errors", "hca/verbs/TestR05Errnos"}},
	6:  {says: "Rungs are climbed one by one, by failure or by budget, each for a named reason; repetition stops at the CQ rung.", best: []string{"qprecovery/R06/ladder", "qprecovery/R06/budget", "scripts/e2e/TestR06EndlessRequestErrors"}, chapter: "Moderate remedies first"},
	7:  {says: "The device is reset for a fatal event, a proven freeze, a failed CQ rung or the operator, never for what a peer or the network does.", best: []string{"qprecovery/TestR07EveryHarmlessSequence", "scripts/e2e/R07/underlay_takes_nothing", "scripts/e2e/TestR07AbuseWrongDatagrams"}},
	8:  {says: "A freeze is suspected within a stated bound and proven on a fresh QP and CQ. An idle link, a port that is down, a slow create-AH, a full wire and a stall of the daemon are not freezes. Each device is also checked as a whole.", best: []string{"qprecovery/R08/freeze", "qprecovery/freeze/TestR08Bound", "scripts/e2e/R08/completions_stop_on_every_CQ"}},
	9:  {says: "Frames are held for a bounded time, then the carrier goes down; ib0, its addresses, routes and TCP connections survive.", best: []string{"qprecovery/R09/traffic", "cmd/ipoibd/internal/iface/TestR09FramesAreHeld", "scripts/e2e/R09/TCP_lives_on"}},
	10: {says: "Frames in flight are sent again or counted as dropped, once, and no buffer leaks.", best: []string{"ud/TestR10TxAccounts", "cmd/ipoibd/internal/iface/TestR10InFlight", "scripts/e2e/TestR10StormUnderTraffic"}},
	11: {says: "Any client may request a reset; the device is reset when every client has reported ready, and each learns when the reset is pending and when it has ended.", best: []string{"qprecovery/reset/TestR11R15R16Explore", "cmd/ipoibd/internal/resetlock/TestR11R13R16DaemonsShareADevice"}, chapter: "Resetting a device that others use"},
	12: {says: "Clients release their resources in the order of dependency, and create them in the reverse order.", best: []string{"cmd/ipoibd/internal/endpoint/TestR12ReleaseInOrderOfDependence"}},
	13: {says: "Every client is notified, including an idle one. One that registers during a reset is notified at once.", best: []string{"cmd/ipoibd/internal/device/TestR13EveryUserIsTold", "cmd/ipoibd/internal/resetlock/TestR13NewcomerDuringAReset"}},
	14: {says: "A silent client delays a reset no longer than a configurable grace period; then its handle becomes a zombie.", best: []string{"cmd/ipoibd/internal/device/TestR14ResetWithoutSilentUser", "scripts/e2e/R14/client_dead"}},
	15: {says: "Several requests during a reset cause one reset, and a client that dies does not block it.", best: []string{"cmd/ipoibd/internal/device/TestR15RequestsAreOne", "cmd/ipoibd/internal/resetlock/TestR15ParticipantIsKilledAtEachStep", "cmd/ipoibd/internal/resetlock/TestR15R16LeaderIsKilledAtEachStep"}},
	16: {says: "Daemons that share a device coordinate its resets. A device that another process still holds is not reset, and the log names that process.", best: []string{"cmd/ipoibd/internal/resetlock/TestR14R16HeldByAnotherProcess", "scripts/vm/TestR16R21Sharing"}},
	17: {says: "A reset needs no disk: memory is locked, and the daemon opens no file and starts no program.", best: []string{"cmd/ipoibd/internal/daemon/TestR17DeviceReset", "scripts/vm/TestR17RealDeviceReset"}},
	18: {says: "After a fatal event, requests are flushed in software, posts fail at once, verbs that release succeed and other verbs fail.", best: []string{"ud/TestR18FailedDeviceFlushesSends", "hca/guard/TestR18NewWorkFailsAtOnce", "hca/guard/TestR18ReleasingSucceeds"}, chapter: "Error state, zombies, generations"},
	19: {says: "A zombie, the handle of a dead device, returns the same error from every call and may be closed twice. The caller of a verb that hangs gets that error too.", best: []string{"hca/guard/TestR19EveryCallAnswersTheSame", "hca/guard/TestR19StuckVerbIsBounded", "scripts/e2e/R19/verb_hangs_for_good_in_two_instances"}},
	20: {says: "Late completions, events and handles of an earlier generation are recognised and dropped.", best: []string{"qprecovery/R20/generations", "ud/TestR10R20TxTakesEverythingBack", "hca/guard/TestR20R28InstancesDoNotMix"}},
	21: {says: "Reset, unplug, driver removal and PCI errors take one path: drop everything, start from scratch.", best: []string{"qprecovery/R21/one-path", "scripts/e2e/R21/unplug_and_replug", "scripts/vm/TestR21FunctionResetCutShort"}, chapter: "Reset, unplug and replug take one path"},
	22: {says: "Service restarts by itself only on the same device, identified by its GUIDs and its PCI address or parent netdev.", best: []string{"qprecovery/R22/identity", "scripts/e2e/R22/another_device,_then_the_right_one", "scripts/vm/TestR22R24Removal"}},
	23: {says: "The wait for a device ends after a configurable time, 10 minutes by default; the operator can still restart.", best: []string{"qprecovery/R23/give-up", "scripts/e2e/R23/give_up,_then_recover"}},
	24: {says: "Events report arrival and removal. The list of devices is read after each of them; a list that cannot be read is not a removal.", best: []string{"cmd/ipoibd/internal/device/TestR24List", "hca/rdma/TestR24UnreadableIsNotRemoved", "scripts/vm/TestR22R24Removal"}},
	25: {says: "Each trigger is handled: fatal events, PCI errors, an unresponsive device, isolation by an administrator, unplug, driver removal, port errors, commands of the operator.", best: []string{"qprecovery/R25/triggers", "cmd/ipoibd/internal/device/TestR25Triggers", "scripts/vm/TestR16R25FunctionReset"}},
	26: {says: "Interfaces stop before their port and start after it; the daemon delays sleep and shutdown no longer than the system allows. Another process continues a suspension, a wait or a pause as it is.", best: []string{"qprecovery/R26/hand-over", "cmd/ipoibd/internal/power/TestR26SleepWaitsForSuspend", "scripts/e2e/R26/suspend_and_resume"}, chapter: "Power, several devices, what the operator sees"},
	27: {says: "A device that vanishes crashes nothing: requests wait within a bound or fail, and service resumes when it returns.", best: []string{"qprecovery/R27/suspend", "cmd/ipoibd/internal/device/TestR27Vanishes", "cmd/ipoibd/internal/iface/TestR09R27StaleFramesAreDropped"}},
	28: {says: "Nothing assumes a single device. Memory regions, keys and AHs of one device are never used with another.", best: []string{"hca/guard/TestR20R28InstancesDoNotMix", "scripts/e2e/TestR28TwoDevicesAreApart"}},
	29: {says: "The operator sees the current rung, its cause, counts, outages and the last recoveries.", best: []string{"qprecovery/R29/history", "cmd/ipoibd/TestR29StatusTellsRungCauseOutageAndTheLastRecovery", "qprecovery/TestR29EachRungAndEndIsReported"}},
}

const requirementsPreface = `<!-- Written by make requirements from scripts/requirements_test.go. -->

# What recovery must do

Each requirement has a number, which comments and tests cite: ` + "`TestR05Events`" + ` shows R5. The tests named here are those to read
first; ` + "`grep -rn 'R0\\?5' --include='*.go' .`" + ` finds all that concerns R5. Most of the linked text files are transcripts: the events
that the pure machines of this package get, and the actions they return. [doc.go](doc.go) explains the terms, such as rung and suspicion.
`

var (
	testFunc   = regexp.MustCompile(`(?m)((?:^//.*\n)*)^func (Test((?:R\d+)*)\w*)\(`)
	subtest    = regexp.MustCompile(`"((R\d+)/[^"]*)"`)
	transcript = regexp.MustCompile(`/testdata/(R\d+)-(.+)\.txt$`)
	comment    = regexp.MustCompile(`//.*`)
	mention    = regexp.MustCompile(`\bR(\d{1,3})(?:[-–]R(\d+))?\b`)
	// ofRecovery are the packages whose comments cite requirements.
	ofRecovery = regexp.MustCompile(`^(cmd/|hca/(faults|guard)/|link/|neigh/|qprecovery/|ud/).*\.go$`)
)

// evidence lists what the tree contains on one requirement.
type evidence struct {
	packages map[string]bool
	tests    map[string]string // by folder and name: the file
}

// readEvidence finds the requirements that are cited in comments of code, in names and
// comments of tests, and in names of subtests and transcripts.
func readEvidence(tree fs.FS) (*[len(requirements)]evidence, error) {
	var all [len(requirements)]evidence
	for i := range all {
		all[i] = evidence{map[string]bool{}, map[string]string{}}
	}
	// note calls add for each requirement, and each of a range, that text cites.
	note := func(file, text string, add func(*evidence)) error {
		for _, m := range mention.FindAllStringSubmatch(text, -1) {
			from, _ := strconv.Atoi(m[1])
			to, _ := strconv.Atoi(m[2])
			for n := from; n <= max(from, to); n++ {
				if n < 1 || n >= len(all) {
					return fmt.Errorf("%s: there is no R%d", file, n)
				}
				add(&all[n])
			}
		}
		return nil
	}
	noteTest := func(file, folder, name, text string) error {
		return note(file, text, func(e *evidence) { e.tests[folder+"/"+strings.ReplaceAll(name, " ", "_")] = file })
	}
	return &all, fs.WalkDir(tree, ".", func(file string, d fs.DirEntry, err error) error {
		switch m := transcript.FindStringSubmatch(file); {
		case err != nil:
			return err
		case d.IsDir() && (file == "scripts/mutants" || file == ".git"): // .git is a file in a worktree
			return fs.SkipDir // the tests there are patches
		case m != nil:
			return noteTest(file, path.Dir(path.Dir(file)), m[1]+"/"+m[2], m[1])
		case path.Ext(file) != ".go" || strings.Contains(file, "/testdata/") || file == "scripts/requirements_test.go":
			return nil
		}
		content, err := fs.ReadFile(tree, file)
		text, folder := string(content), path.Dir(file)
		if strings.HasSuffix(file, "_test.go") {
			for _, m := range testFunc.FindAllStringSubmatch(text, -1) {
				err = cmp.Or(err, noteTest(file, folder, m[2], m[1]+strings.ReplaceAll(m[3], "R", " R")))
			}
			for _, m := range subtest.FindAllStringSubmatch(text, -1) {
				err = cmp.Or(err, noteTest(file, folder, m[1], m[2]))
			}
		} else if ofRecovery.MatchString(file) {
			for _, line := range comment.FindAllString(text, -1) {
				err = cmp.Or(err, note(file, line, func(e *evidence) { e.packages[folder] = true }))
			}
		}
		return err
	})
}

// requirementsText returns the page. Its errors name requirements without packages, and best
// tests that do not exist or do not cite their requirement.
func requirementsText(all *[len(requirements)]evidence) (string, error) {
	var err error
	text := requirementsPreface
	for n, r := range requirements[:] {
		if n == 0 {
			continue
		}
		if r.chapter != "" {
			text += fmt.Sprintf("\n## %s\n\n| | requirement | packages | tests |\n|---|---|---|---|\n", r.chapter)
		}
		link := func(name, file string) string {
			return fmt.Sprintf("[`%s`](%s)", name, strings.TrimPrefix("../"+file, "../qprecovery/"))
		}
		var places, tests []string
		for _, folder := range slices.Sorted(maps.Keys(all[n].packages)) {
			places = append(places, link(strings.TrimPrefix(folder, "cmd/ipoibd/internal/"), folder))
		}
		for _, name := range r.best {
			file, ok := all[n].tests[name]
			if !ok {
				err = errors.Join(err, fmt.Errorf("R%d: no test %s cites it", n, name))
			}
			short := path.Base(name)
			if subtest := fmt.Sprintf("/R%02d/", n); strings.Contains(name, subtest) {
				_, short, _ = strings.Cut(name, subtest)
			}
			tests = append(tests, link(strings.ReplaceAll(short, "_", " "), file))
		}
		if len(places) == 0 || len(tests) == 0 || len(tests) > 3 {
			err = errors.Join(err, fmt.Errorf("R%d: %d packages and %d tests, want at least one, and 1 to 3", n, len(places), len(tests)))
		}
		text += fmt.Sprintf("| R%d | %s | %s | %s |\n", n, r.says, strings.Join(places, ", "), strings.Join(tests, ", "))
	}
	return text, err
}

// The page agrees with the table and the tree: for each requirement there are packages and
// tests that cite it. make requirements rewrites the page.
func TestRequirements(t *testing.T) {
	all, err := readEvidence(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	want, err := requirementsText(all)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(root+"/"+requirementsPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(root + "/" + requirementsPage); err != nil || string(have) != want {
		t.Errorf("%s is out of date; run make requirements (%v)", requirementsPage, err)
	}
}

func TestRequirementsAreFound(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	all, err := readEvidence(fstest.MapFS{
		"ud/a.go":                   file("package ud // R1\n// R18-R20 hold\nvar x = \"R2\""),
		"hca/a.go":                  file("package hca // R99 is a register"),
		"ud/a_test.go":              file("package ud\n// R3: what it shows.\nfunc TestIt(t *testing.T) {}\nfunc TestR04R05Both(t *testing.T) {}\nvar s = \"R06/a b\""),
		"scripts/vm/a_test.go":      file("package vm\nfunc TestR07(t *testing.T) {}"),
		"ud/testdata/R08-x.txt":     file(""),
		"ud/testdata/R09.txt":       file(""),
		"scripts/mutants/a_test.go": file("func TestR10(t *testing.T) {}"),
		"ud/testdata/p/p_test.go":   file("func TestR11(t *testing.T) {}"),
	})
	var got []string
	for n, e := range all {
		for name := range e.packages {
			got = append(got, fmt.Sprintf("R%d %s", n, name))
		}
		for name := range e.tests {
			got = append(got, fmt.Sprintf("R%d %s", n, name))
		}
	}
	slices.Sort(got)
	want := strings.Split("R1 ud,R18 ud,R19 ud,R20 ud,R3 ud/TestIt,R4 ud/TestR04R05Both,R5 ud/TestR04R05Both,"+
		"R6 ud/R06/a_b,R7 scripts/vm/TestR07,R8 ud/R08/x", ",")
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v\n%q, want\n%q", err, got, want)
	}
	if _, err := requirementsText(all); err == nil {
		t.Error("requirements without tests are accepted")
	}
	for name, text := range map[string]string{
		"a_test.go": "func TestR30Most(t *testing.T) {}", "b_test.go": `var x = "R31/a"`, "ud/a.go": "// R28-R30", "ud/b.go": "// R0",
		"ud/c_test.go": "// R32: it.\nfunc TestIt(t *testing.T) {}", "ud/testdata/R33-a.txt": "",
	} {
		if _, err := readEvidence(fstest.MapFS{name: file(text)}); err == nil {
			t.Errorf("%s: a requirement that does not exist is accepted", name)
		}
	}
}
