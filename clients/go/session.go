// SPDX-License-Identifier: MIT

package lock

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	commands = iota
	messages
)

// tryAgain is the pause after a connection broke.
const tryAgain = 50 * time.Millisecond

// giveBackFor is how long it is tried to give back what is kept, and to take back a wait, behind the back of who could not.
const giveBackFor = 10 * time.Minute

// lookFor is how long who waits in the server has at most for a look whether it is there, and again for a new connection, also if the
// patience is longer.
const lookFor = 5 * time.Second

// lookAgain is how often who waits in the server looks whether it is there. With what follows, a server remembers a call for
// longer.
func (s *session) lookAgain() time.Duration { return min(8*time.Second, s.patience*8/5) }

// A session is two connections that carry all waits and holds: made when they are needed, and again when they broke.
type session struct {
	options *redis.Options
	// patience is how long a call may go unanswered.
	patience time.Duration
	inbox    string
	// closing ends first: waits are taken back. gone ends then: the connections are dropped.
	closing, gone    context.Context
	close, disappear context.CancelFunc
	// releaseFor is how long a release, or another call for a hold, keeps its caller waiting at most.
	releaseFor time.Duration
	// beat is how often what is kept is renewed, also with a long lease: a connection that is idle for longer may be ended.
	beat time.Duration
	// acquires are on their way; tasks are all goroutines of the session.
	acquires, tasks sync.WaitGroup

	mu     sync.Mutex
	closed bool
	links  [2]*link
	// refusal is why no connection is made before again: the last ones led to a server that is not the primary. calm is the pause
	// after the next such answer.
	refusal *Error
	again   time.Time
	calm    time.Duration
	// idle carries one call that waits in the server, when one comes.
	idle *link
	// openings has one attempt to connect, for all who need it.
	openings [2]*opening
	// waits by their request: who is told to ask again.
	waits map[string]chan struct{}
	// watched holds are told when a connection broke.
	watched map[*Hold]struct{}
	// giving is what is given back, or taken back, behind everybody's back. begun is how much of that was begun ever.
	giving map[claim]*giving
	begun  int
}

// A claim is all that an owner has of a lock.
type claim struct{ key, owner string }

type giving struct {
	many int
	// over is closed when nothing more is given back.
	over chan struct{}
}

type opening struct {
	done chan struct{}
	link *link
	err  *Error
}

// answered is what came for a call, on which link, and when the call was sent. It is empty if no server has seen the call, or if
// it was refused. Of a call that failed there is a link only if it may be on its way there yet.
type answered struct {
	value any
	link  *link
	sent  time.Time
	// again: the call was sent more than once.
	again bool
}

func newSession(options *redis.Options) *session {
	s := &session{options: options, patience: 5 * time.Second, releaseFor: 30 * time.Second, beat: 10 * time.Second,
		calm: tryAgain, inbox: "inbox-" + random(),
		waits: map[string]chan struct{}{}, watched: map[*Hold]struct{}{}, giving: map[claim]*giving{}}
	s.closing, s.close = context.WithCancel(context.Background())
	s.gone, s.disappear = context.WithCancel(context.Background())
	return s
}

func random() string {
	var bytes [16]byte
	if _, err := rand.Read(bytes[:]); err != nil {
		panic(err)
	}
	return hex.EncodeToString(bytes[:])
}

var host, _ = os.Hostname()

// newOwner is a name that nobody else ever has.
func newOwner() string { return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), random()) }

// enter begins an acquire, which Close waits for.
func (s *session) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	s.acquires.Add(1)
	return nil
}

// spawn runs a goroutine that Close waits for. The caller is one, or in an acquire.
func (s *session) spawn(work func()) {
	s.tasks.Add(1)
	go func() {
		defer s.tasks.Done()
		work()
	}()
}

// follow is spawn for who may be neither. It says whether the session is there yet.
func (s *session) follow(work func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	// With the lock: who has not seen the end is waited for.
	if s.gone.Err() != nil {
		return false
	}
	s.spawn(work)
	return true
}

// expect gives the channel on which the wait with this request is told to ask again.
func (s *session) expect(request string) chan struct{} {
	told := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits[request] = told
	return told
}

func (s *session) forget(request string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waits, request)
}

// told takes "granted <request> <key>" and "lost <request> <key>". Both mean: ask again.
func (s *session) told(message string) {
	words := strings.SplitN(message, " ", 3)
	if len(words) < 2 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if told, ok := s.waits[words[1]]; ok {
		poke(told)
	}
}

// wake tells everybody that a connection broke.
func (s *session) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, told := range s.waits {
		poke(told)
	}
	for hold := range s.watched {
		poke(hold.wake)
	}
}

// connect gives the link of that kind, and makes it if there is none.
func (s *session) connect(ctx context.Context, kind int) (*link, error) {
	if ctx.Err() != nil {
		return nil, ended(ctx)
	}
	s.mu.Lock()
	if s.gone.Err() != nil {
		s.mu.Unlock()
		return nil, errClosed
	}
	if l := s.links[kind]; l != nil && l.alive() {
		s.mu.Unlock()
		return l, nil
	}
	o := s.openings[kind]
	if err := s.calming(); o == nil && err != nil {
		s.mu.Unlock()
		return nil, err
	}
	if o == nil {
		o = &opening{done: make(chan struct{})}
		s.openings[kind] = o
		s.spawn(func() { s.open(kind, o) })
	}
	s.mu.Unlock()
	select {
	case <-o.done:
		if o.err != nil {
			return nil, o.err
		}
		return o.link, nil
	case <-ctx.Done():
		return nil, ended(ctx)
	}
}

// calming is why no connection is to be made now. It is called with the lock.
func (s *session) calming() *Error {
	if time.Now().Before(s.again) {
		return s.refusal
	}
	return nil
}

// calmFor is for how long no connection is made.
func (s *session) calmFor() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Until(s.again)
}

// moved is called when a server said that another has the locks. Next connections lead there after a failover, but not at once: a
// thousand waits would ask the old one a thousand times.
func (s *session) moved(refusal *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calming() == nil {
		s.refusal, s.again = refusal, time.Now().Add(s.calm)
		s.calm = min(2*s.calm, time.Second)
	}
}

// arrived is called when a server did what it was asked for: it is the primary.
func (s *session) arrived() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calm = tryAgain
}

func (s *session) open(kind int, o *opening) {
	ctx, cancel := context.WithTimeout(s.gone, s.patience)
	defer cancel()
	l, in, err := s.dial(ctx, kind)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.openings[kind] = nil
	o.link, o.err = l, err
	defer close(o.done)
	if err != nil {
		return
	}
	s.links[kind] = l
	l.mu.Lock()
	l.timer, l.looking = time.AfterFunc(s.patience, l.look), true
	l.mu.Unlock()
	s.serve(l, in)
}

func (s *session) serve(l *link, in *bufio.Reader) {
	s.spawn(func() { l.read(in) })
	s.spawn(l.write)
	s.spawn(func() {
		select {
		case <-s.gone.Done():
			l.breakOff(errClosed)
		case <-l.dead:
		}
	})
}

// block carries out a call that waits in the server, and nobody else's meanwhile. Also of a refused call it tells when it was
// sent. What it gets is bound to the link, which is to be given to rest, or broken off. If the context ends first, the link is
// gone, and the wait with it.
func (s *session) block(ctx context.Context, words ...any) (answered, error) {
	l, err := s.ownLink(ctx)
	if err != nil {
		return answered{}, err
	}
	// TCP may take long to find that nobody is there. Who does not answer on the other connection does not on this one.
	probe := time.NewTicker(s.lookAgain())
	defer probe.Stop()
	looking, stop := context.WithCancel(ctx)
	defer stop()
	younger := make(chan *link)
	sent, again := time.Now(), false
	answer := l.send(append(words, "BLOCK", remaining(ctx)))
	for {
		select {
		case got := <-answer:
			if got.err == nil {
				s.arrived()
				return answered{got.value, l, sent, again}, nil
			}
			if got.err.elsewhere {
				s.moved(got.err)
				l.breakOff(got.err)
			} else {
				// It got nothing.
				s.rest(l)
			}
			return answered{sent: sent}, got.err
		case <-probe.C:
			on := l
			s.spawn(func() { s.doubt(looking, on, younger) })
		case next := <-younger:
			// The same call: so it keeps its place, if it comes before the end of the old connection.
			old, said := l, answer
			l, answer, again = next, next.send(append(words, "BLOCK", remaining(ctx))), true
			s.spawn(func() {
				select {
				case got := <-said:
					if got.err == nil {
						// What is granted there would end with it, until the same call has come on the next.
						_ = sleep(looking, courtesy)
					}
				case <-time.After(courtesy):
				}
				old.giveUp(errOld)
			})
		case <-ctx.Done():
			// The server hears of it, and drops the wait. If it has not heard of the wait, it must not later.
			if s.closing.Err() == nil {
				l.giveUp(ctx.Err())
			} else {
				l.breakOff(errClosed)
			}
			return answered{sent: sent}, ended(ctx)
		}
	}
}

// doubt asks on the other connection whether the server is there. If that was made later, its answer says nothing of the link of a
// wait: it may lead to another server, or a firewall on the way may have forgotten this one. Then, and if there is no answer, there
// is a younger one for the wait. If that cannot be had, the link is given up: it may lead nowhere.
func (s *session) doubt(ctx context.Context, l *link, younger chan<- *link) {
	looking, stop := s.look(ctx)
	defer stop()
	other, err := s.connect(looking, commands)
	if err == nil && other.isOlder(l) {
		// A refusal is an answer, too.
		if _, err = s.callOn(looking, other, "PING"); !passes(err) || refused(err) {
			return
		}
		if s.patience <= lookFor {
			// The time of that connection is over, too. The wait would move again behind the next.
			other.giveUp(err)
		}
	}
	moving, stop := s.look(ctx)
	defer stop()
	next, err := s.ownLink(moving)
	switch {
	case err == nil:
		select {
		case younger <- next:
		case <-ctx.Done():
			s.rest(next)
		}
	case passes(err) && !refused(err):
		l.giveUp(err)
	}
}

// look is a context that ends before a server forgets a call.
func (s *session) look(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, lookFor, verdict{broken(errSilent)})
}

// ownLink is younger than the other connection, which is made first for that.
func (s *session) ownLink(ctx context.Context) (*link, error) {
	other, err := s.connect(ctx, commands)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	l, calming := s.idle, s.calming()
	s.idle = nil
	s.mu.Unlock()
	if l != nil && l.alive() {
		if other.isOlder(l) {
			return l, nil
		}
		l.breakOff(errOld)
	}
	if calming != nil {
		return nil, calming
	}
	dialing, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	began := time.Now()
	l, in, refusal := s.dial(dialing, commands)
	switch {
	case refusal == nil:
	case ctx.Err() != nil:
		return nil, ended(ctx)
	default:
		return nil, refusal
	}
	// What led it there was known before.
	l.made = began
	// That concerns nobody else.
	l.onEnd = func() {}
	s.serve(l, in)
	return l, nil
}

// remaining is for how many milliseconds the server lets a call wait: without limit with 0.
func remaining(ctx context.Context) int64 {
	deadline, limited := ctx.Deadline()
	if !limited {
		return 0
	}
	return max(1, min(time.Until(deadline).Milliseconds(), 1e12))
}

// rest keeps a link to which nothing is bound for the next call that waits.
func (s *session) rest(l *link) {
	s.mu.Lock()
	spare := s.idle
	if spare == nil || !spare.alive() {
		s.idle, spare = l, nil
	} else {
		spare = l
	}
	s.mu.Unlock()
	if spare != nil {
		spare.breakOff(errors.New("it is not needed"))
	}
}

// dial connects as the client's options say, and does what must be done before the first call.
func (s *session) dial(ctx context.Context, kind int) (*link, *bufio.Reader, *Error) {
	username, password, err := credentials(ctx, s.options)
	if err != nil {
		return nil, nil, broken(err)
	}
	conn, err := s.reach(ctx)
	if err != nil {
		return nil, nil, broken(err)
	}
	if tcp := underneath(conn); tcp != nil {
		keepAlive(tcp)
	}
	// Ends a handshake that nobody answers, also when all is closed.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	name := s.options.ClientName
	if name == "" {
		name = fmt.Sprintf("lock:%s:%d", host, os.Getpid())
	}
	// A user may be without the permission for it. The name is a comfort.
	calls := [][]any{{"CLIENT", "SETNAME", name}}
	optional := 1
	if s.options.DB != 0 {
		calls = append(calls, []any{"SELECT", s.options.DB})
	}
	if kind == messages {
		calls = append(calls, []any{"SUBSCRIBE", "lock:inbox:" + s.inbox})
	}
	if password != "" {
		auth := []any{"AUTH", password}
		if username != "" {
			auth = []any{"AUTH", username, password}
		}
		calls = append([][]any{auth}, calls...)
		optional = 2
	}
	var out []byte
	for _, call := range calls {
		out = appendCommand(out, call)
	}
	in := bufio.NewReader(conn)
	if _, err = conn.Write(out); err == nil {
		for number := range calls {
			var value any
			if value, err = readReply(in); err != nil {
				break
			}
			if text, refused := value.(serverError); refused {
				if refusal := text.kind(); number+1 != optional || refusal.Kind != ErrMisuse {
					stop()
					_ = conn.Close()
					return nil, nil, refusal
				}
			}
		}
	}
	if !stop() && err == nil {
		err = errSilent
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, broken(err)
	}
	l := &link{conn: conn, made: time.Now(), patience: s.patience, onEnd: s.wake,
		dead: make(chan struct{}), wake: make(chan struct{}, 1)}
	if kind == messages {
		l.onMessage = s.told
	}
	return l, in, nil
}

// reach dials, and lets go of a dialer that does not heed the context: go-redis' own does not, with TLS. That goes on until its
// DialTimeout.
func (s *session) reach(ctx context.Context) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	dialed := make(chan result)
	go func() {
		conn, err := s.options.Dialer(ctx, s.options.Network, s.options.Addr)
		select {
		case dialed <- result{conn, err}:
		case <-ctx.Done():
			if err == nil {
				_ = conn.Close()
			}
		}
	}()
	select {
	case got := <-dialed:
		return got.conn, got.err
	case <-ctx.Done():
		return nil, errSilent
	}
}

func credentials(ctx context.Context, options *redis.Options) (string, string, error) {
	if options.CredentialsProviderContext != nil {
		return options.CredentialsProviderContext(ctx)
	}
	if options.CredentialsProvider != nil {
		username, password := options.CredentialsProvider()
		return username, password, nil
	}
	return options.Username, options.Password, nil
}

// listen is called before a wait: the server takes a message that nobody hears for a refusal.
func (s *session) listen(ctx context.Context) error {
	_, err := s.connect(ctx, messages)
	return err
}

// probe gives up the connection for messages if nothing at all comes on it. It may have been idle for so long that somebody on
// the way has forgotten it.
func (s *session) probe() {
	s.mu.Lock()
	l := s.links[messages]
	s.mu.Unlock()
	if l == nil || !l.probed.CompareAndSwap(false, true) {
		return
	}
	s.whenAnswered(l, func() { l.probed.Store(false) })
}

// call carries out a command. If the context ends first, the command may be carried out all the same.
func (s *session) call(ctx context.Context, words ...any) (answered, error) {
	l, err := s.connect(ctx, commands)
	if err != nil {
		return answered{}, err
	}
	return s.callOn(ctx, l, words...)
}

func (s *session) callOn(ctx context.Context, l *link, words ...any) (answered, error) {
	sent := time.Now()
	answer := l.send(words)
	var got reply
	select {
	case got = <-answer:
	case <-ctx.Done():
		select {
		case got = <-answer:
		default:
			return answered{sent: sent, link: l}, ended(ctx)
		}
	}
	if got.err == nil {
		if words[0] != "PING" {
			s.arrived()
		}
		return answered{value: got.value, link: l, sent: sent}, nil
	}
	// What a guarded command says is its own word.
	if got.err.elsewhere && words[0] != "LOCK.GUARD" && l.alive() {
		// The new primary looks whether anybody hears its messages.
		s.mu.Lock()
		heard := s.links[messages]
		s.mu.Unlock()
		s.moved(got.err)
		l.giveUp(got.err)
		if heard != nil {
			heard.giveUp(got.err)
		}
	}
	if got.lost {
		return answered{sent: sent}, got.err
	}
	return answered{}, got.err
}

// insist calls until there is an answer other than that the server can do nothing now, for that long at most.
func (s *session) insist(ctx context.Context, limit time.Duration, words ...any) (answered, error) {
	for deadline, pause := time.Now().Add(limit), tryAgain; ; pause = min(2*pause, time.Second) {
		got, err := s.call(ctx, words...)
		if !errors.Is(err, ErrUnavailable) || err == error(errClosed) || !time.Now().Before(deadline) {
			return got, err
		}
		if sleep(ctx, pause) != nil {
			return answered{}, ended(ctx)
		}
	}
}

// gives notes that something of that claim is being given back, until what it returns is called.
func (s *session) gives(what claim) (given func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.note(what)
}

// note is gives, and is called with the lock.
func (s *session) note(what claim) (given func()) {
	g := s.giving[what]
	if g == nil {
		g = &giving{over: make(chan struct{})}
		s.giving[what] = g
	}
	g.many++
	s.begun++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if g.many--; g.many == 0 {
			delete(s.giving, what)
			close(g.over)
		}
	}
}

// begunBy is how much has been begun to be given back by now.
func (s *session) begunBy() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// whenAnswered calls that when nothing is on its way any more on the link, or at once if there is none.
func (s *session) whenAnswered(l *link, do func()) {
	if l == nil || !s.follow(func() { <-l.send([]any{"PING"}); do() }) {
		do()
	}
}

// has says whether anything of that claim is held here.
func (s *session) has(what claim) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for hold := range s.watched {
		if (claim{hold.key, hold.owner}) == what {
			return true
		}
	}
	return false
}

// settle waits until nothing of that owner is given back any more. That goes by the owner's name: it would end the new hold of
// that name.
func (s *session) settle(ctx context.Context, what claim, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		s.mu.Lock()
		g := s.giving[what]
		s.mu.Unlock()
		if g == nil {
			return nil
		}
		select {
		case <-g.over:
		case <-ctx.Done():
			return ended(ctx)
		case <-timer.C:
			return &Error{Kind: ErrUnavailable, Text: "what this owner had or asked for could not be given back yet"}
		}
	}
}

func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settleAll waits until nothing at all is given back any more, or the session is gone.
func (s *session) settleAll() {
	for {
		var over chan struct{}
		s.mu.Lock()
		for _, g := range s.giving {
			over = g.over
		}
		s.mu.Unlock()
		if over == nil {
			return
		}
		select {
		case <-over:
		case <-s.gone.Done():
			return
		}
	}
}

// end takes back the waits, has given back what is on its way, and then drops the connections. Nothing of the session is left after
// it.
func (s *session) end() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.close()
	taken, settled := make(chan struct{}), make(chan struct{})
	go func() {
		s.acquires.Wait()
		close(taken)
		s.settleAll()
		close(settled)
	}()
	select {
	case <-settled:
	case <-time.After(courtesy):
	}
	s.mu.Lock()
	// With the lock: whoever connects has seen it, or is waited for.
	s.disappear()
	s.mu.Unlock()
	<-taken
	s.tasks.Wait()
}
