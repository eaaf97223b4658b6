//! Follows one kind of object for as long as anyone listens.
//!
//! In: answers of the API server. Out: batches of events: a full list, then changes, and after
//! every break as much of either as is needed. Nothing is stored but how far the history is
//! known: the tracker at the other end is the store, and finds out by itself what a repeated list
//! changes.
//!
//! A reflector never fails. It tries again, later and later, and logs why.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ferrule_core::issue::Kind;
use ferrule_core::track::Event;
use kube::client::Body;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::Settings;
use super::capability::Capability;
use super::client::{Answer, Api};
use super::failure::Failure;
use super::format::{Events, Format, Objects};
use super::frames;
use super::intake::{Intake, ListMetadata, Progress, Shape};
use super::pace::{Absence, Backoff, LogThrottle, Random};
use super::resource::{ENDPOINTS, Part, Resource, Selection, Version};

/// So many events are delivered at once at most. The next ones wait in the network meanwhile.
const BATCH: usize = 256;

/// So many bytes of a list are taken in before the batch is looked at.
const STEP: usize = 16 << 10;

/// A server that asks to be left alone for longer than this is asked again sooner.
const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(1);

/// How long to watch core Endpoints, in seconds: at its end we ask for EndpointSlices again.
const FALLBACK_WATCH: Range<u64> = 60..90;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// We know nothing, or no longer enough.
    List,
    /// Go on from the version we know.
    Watch,
}

/// Whether the server has the collection a kind should be in.
#[derive(Clone, Copy, Debug)]
enum Presence {
    /// It was not listed by this process.
    Unknown,
    Listed,
    /// It was listed, and now the server says that it does not exist.
    Absent(Absence),
}

/// Follows one kind of object.
pub struct Reflector<M> {
    api: Api,
    settings: Arc<Settings>,
    sink: mpsc::Sender<M>,
    kind: Kind,
    /// Where the objects are; not always where they should be.
    resource: &'static Resource,
    next: Next,
    version: Version,
    /// Lists as streams.
    streams: Capability,
    /// Selecting by fields that older servers do not know.
    optional_fields: Capability,
    /// A stream broke off, so this one list is asked for in another way.
    skip_stream: bool,
    /// Whether a list may come in pages.
    pages: bool,
    presence: Presence,
    intake: Intake,
    backoff: Backoff,
    throttle: LogThrottle,
    /// The log says that the server does not have the collection.
    logged_missing: bool,
    random: Random,
}

impl<M: From<Vec<Event>>> Reflector<M> {
    pub fn new(api: Api, settings: Arc<Settings>, kind: Kind, sink: mpsc::Sender<M>) -> Self {
        Self {
            api,
            sink,
            kind,
            resource: Resource::of(kind),
            next: Next::List,
            version: Version::Any,
            streams: Capability::new(settings.streaming_lists),
            optional_fields: Capability::new(true),
            skip_stream: false,
            pages: true,
            presence: Presence::Unknown,
            intake: Intake::new(kind, &settings.node_name),
            backoff: Backoff::default(),
            throttle: LogThrottle::default(),
            logged_missing: false,
            random: Random::new(),
            settings,
        }
    }

    /// Follows until nobody listens any more.
    pub async fn run(mut self) {
        let sink = self.sink.clone();
        tokio::select! {
            () = sink.closed() => {}
            () = self.follow_forever() => {}
        }
    }

    async fn follow_forever(&mut self) {
        loop {
            let streams = !self.skip_stream && self.is_on(&self.streams);
            let result = match self.next {
                Next::List if streams => self.stream().await,
                Next::List => self.list().await,
                Next::Watch => self.watch().await,
            };
            // Also after a failure: what came before it counts, and the version says so.
            self.deliver().await;
            if let Err(failure) = result
                && !self.adapt(&failure, streams)
            {
                self.recover(failure).await;
            }
        }
    }

    /// A list as the beginning of a watch.
    async fn stream(&mut self) -> Result<(), Failure> {
        let seconds = self.watch_seconds();
        let path = self
            .resource
            .stream(self.selection(), &self.version, seconds);
        self.ask_and_follow(&path, seconds).await
    }

    /// Changes since the version we know.
    async fn watch(&mut self) -> Result<(), Failure> {
        let seconds = self.watch_seconds();
        let Some(version) = self.known_version() else {
            self.next = Next::List;
            return Ok(());
        };
        let path = self.resource.watch(self.selection(), version, seconds);
        self.ask_and_follow(&path, seconds).await
    }

    async fn ask_and_follow(&mut self, path: &str, seconds: u64) -> Result<(), Failure> {
        let began = Instant::now();
        let (wanted, limit) = (self.settings.format, self.settings.timings.answer);
        let (format, mut body) = self.api.get(path, wanted, limit).await?;
        match self.next {
            Next::List => self.begin_list(),
            Next::Watch => self.log_recovery(),
        }
        let lines = self.follow(format, &mut body, seconds).await;
        let observer = self.api.observer();
        observer.watch_ended(self.resource.name, lines.is_ok());
        let lines = lines?;
        if self.next == Next::List {
            return Err(Failure::Incomplete);
        }
        if lines == 0 && began.elapsed() < self.settings.timings.short {
            return Err(Failure::Short);
        }
        self.probe_slices().await;
        Ok(())
    }

    /// Reads a watch to its end. Returns how many events it had.
    async fn follow(
        &mut self,
        format: Format,
        body: &mut Body,
        seconds: u64,
    ) -> Result<u64, Failure> {
        let timings = &self.settings.timings;
        let silence = Duration::from_secs(seconds) + timings.slack;
        let (pause, bookmarks) = (timings.answer, timings.bookmarks);
        let mut events = Events::of(format);
        let mut count = 0;
        let mut bookmarked = false;
        loop {
            // Bookmarks may be rare, but within a list there is always more to say.
            let limit = match self.next {
                Next::List => pause,
                Next::Watch if bookmarked => bookmarks.min(silence),
                Next::Watch => silence,
            };
            let Some(piece) = frames::next(body, limit).await? else {
                break;
            };
            events.feed(&piece)?;
            while let Some(event) = events.pop()? {
                count += 1;
                bookmarked |= self.take_in(format, &event)?;
                if self.intake.len() >= BATCH {
                    self.deliver().await;
                }
            }
            if self.next == Next::Watch && self.intake.len() > 0 {
                self.deliver().await;
                let pause = self.settings.rest.pause(Instant::now());
                if !pause.is_zero() {
                    sleep(pause).await;
                }
            }
        }
        if events.is_inside() {
            return Err(Failure::Incomplete);
        }
        Ok(count)
    }

    /// Takes in one event of a watch. Returns whether it is a bookmark, of which more will come.
    fn take_in(&mut self, format: Format, event: &[u8]) -> Result<bool, Failure> {
        let progress = self.intake.event(format, event)?;
        let is_bookmark = matches!(progress, Progress::Bookmark(_));
        match progress {
            Progress::ListEnds(version) if self.next == Next::List => self.end_list(version),
            Progress::Version(version)
            | Progress::Bookmark(version)
            | Progress::ListEnds(version) => {
                // While a list is streamed, versions come in the order of names, not of time.
                if self.next == Next::Watch && !version.is_empty() {
                    self.version = Version::At(version);
                }
            }
        }
        Ok(is_bookmark)
    }

    /// A list in pages, or in one piece.
    async fn list(&mut self) -> Result<(), Failure> {
        let mut version = None;
        let mut token: Option<String> = None;
        loop {
            let part = match &token {
                Some(token) => Part::Next(token),
                None if self.pages => Part::First,
                None => Part::Whole,
            };
            let path = self.resource.list(self.selection(), &self.version, part);
            let metadata = self.page(&path, version.is_none()).await?;
            // All pages are of the version of the first.
            let version = version.get_or_insert(metadata.resource_version);
            if metadata.next.is_empty() {
                let version = std::mem::take(version);
                self.end_list(version);
                return Ok(());
            }
            token = Some(metadata.next);
        }
    }

    async fn page(&mut self, path: &str, first: bool) -> Result<ListMetadata, Failure> {
        let limit = self.settings.timings.answer;
        let answer = self.api.get_packed(path, self.settings.format, limit);
        let Answer {
            format,
            mut packing,
            mut body,
        } = answer.await?;
        if first {
            self.begin_list();
        }
        let mut objects = Objects::of(format);
        while let Some(piece) = frames::next(&mut body, limit).await? {
            // Small steps, so that no batch grows with what the network delivers at once.
            for step in piece.chunks(STEP) {
                packing.unpack(step, |part| {
                    objects.feed(part, |object| self.intake.item(format, object))
                })?;
                if self.intake.len() >= BATCH {
                    self.deliver().await;
                }
            }
        }
        packing.finish(|part| objects.feed(part, |object| self.intake.item(format, object)))?;
        ListMetadata::read(format, &objects.finish()?)
    }

    fn begin_list(&mut self) {
        self.api.observer().listing(self.resource.name);
        let shape = match self.resource.name {
            name if name == ENDPOINTS.name => Shape::Endpoints,
            _ => Shape::Own,
        };
        self.intake.begin_list(shape);
    }

    fn end_list(&mut self, version: String) {
        self.intake.end_list();
        self.version = Version::At(version);
        self.next = Next::Watch;
        self.pages = true;
        self.skip_stream = false;
        if self.resource.name != ENDPOINTS.name {
            self.presence = Presence::Listed;
            self.logged_missing = false;
        }
        self.log_recovery();
    }

    /// Logs that a logged failure is over.
    fn log_recovery(&mut self) {
        if self.throttle.recovered() {
            tracing::info!(
                resource = self.resource.name,
                "The API server answers again"
            );
        }
    }

    /// Hands over what came so far, and waits for the listener to have room.
    async fn deliver(&mut self) {
        let events = self.intake.take();
        if !events.is_empty() && self.sink.send(M::from(events)).await.is_err() {
            // Nobody listens: `run` sees the same and ends this.
            std::future::pending::<()>().await;
        }
    }

    /// Stops asking for an optional feature that the server refused.
    ///
    /// Returns whether it did, and so whether to ask again at once.
    fn adapt(&mut self, failure: &Failure, streams: bool) -> bool {
        if self.selection().optional_fields && self.refuses_fields(failure, streams) {
            self.refused_fields(failure);
            return true;
        }
        // Once a list is complete, a failure is one of the watch.
        let within_stream = self.next == Next::List && streams;
        if within_stream && failure.refuses_streaming() {
            self.refused_streams(failure);
            return true;
        }
        if within_stream && failure.spoils_streaming() {
            tracing::info!(
                resource = self.resource.name,
                reason = failure.whole(),
                "Streamed list ended early; listing in pages this time"
            );
            self.skip_stream = true;
            return true;
        }
        false
    }

    /// Whether the server did not like the field selector.
    fn refuses_fields(&self, failure: &Failure, streams: bool) -> bool {
        // Nothing else in a plain list could be wrong, whatever the words of the refusal.
        let plain_list = self.next == Next::List && !streams && self.known_version().is_none();
        failure.refuses_fields() || (plain_list && failure.code() == Some(400))
    }

    fn refused_fields(&mut self, failure: &Failure) {
        let (host, lasts) = (self.api.host(), self.settings.timings.refusal_lasts);
        if self.optional_fields.refuse(&host, Instant::now(), lasts) {
            tracing::info!(
                resource = self.resource.name,
                reason = failure.whole(),
                "The API server does not support the field selector; continuing without it"
            );
        }
    }

    fn refused_streams(&mut self, failure: &Failure) {
        let (host, lasts) = (self.api.host(), self.settings.timings.refusal_lasts);
        if self.streams.refuse(&host, Instant::now(), lasts) {
            tracing::info!(
                resource = self.resource.name,
                reason = failure.whole(),
                "The API server does not stream lists; listing in pages"
            );
        }
    }

    fn is_on(&self, capability: &Capability) -> bool {
        capability.is_on(&self.api.host(), Instant::now())
    }

    fn selection(&self) -> Selection<'_> {
        Selection {
            node_name: &self.settings.node_name,
            optional_fields: self.resource.has_optional_fields()
                && self.is_on(&self.optional_fields),
        }
    }

    /// Decides what a failure means, logs it, and waits as long as is right.
    async fn recover(&mut self, failure: Failure) {
        let now = Instant::now();
        if failure.is_missing() {
            let believed = self.resource.name == ENDPOINTS.name || self.is_absent(now);
            if self.next == Next::List && believed && self.fall_back().await {
                return;
            }
            self.next = Next::List;
        } else if failure.is_expired() && self.next == Next::Watch {
            // Happens to any watch that was away for too long, and is nobody's fault.
            tracing::info!(
                resource = self.resource.name,
                reason = failure.whole(),
                "Watch expired; listing again"
            );
            self.next = Next::List;
            // At once, unless it happens again and again.
            if self.backoff.is_rested(now, &self.settings.timings) {
                self.backoff.note(now);
                return;
            }
        } else if failure.is_about_the_version() {
            self.next = Next::List;
            self.version = Version::Newest;
            self.pages = false;
        } else if matches!(failure, Failure::Garbled { .. }) {
            self.next = Next::List;
        }
        if failure.is_about_access() {
            self.api.renew().await;
        }
        if self.resource.name == ENDPOINTS.name {
            // Perhaps the server is another one now.
            self.switch_to(Resource::of(self.kind));
        }
        self.wait(now, &failure).await;
    }

    async fn wait(&mut self, now: Instant, failure: &Failure) {
        let timings = &self.settings.timings;
        if self.backoff.is_rested(now, timings) {
            self.throttle.forget();
        }
        let mut delay = self.backoff.next(now, timings, &mut self.random);
        if let Some(asked) = failure.retry_after() {
            delay = delay.max(asked.min(LONGEST_RETRY_AFTER));
        }
        let err = failure.whole();
        if self.throttle.is_due(&err, now, timings) {
            tracing::warn!(
                resource = self.resource.name,
                err,
                advice = failure.advice(self.resource, &self.api.host()),
                retry_in = ?delay,
                "List or watch failed; keeping the last known state"
            );
        }
        sleep(delay).await;
    }

    /// One more answer that the collection does not exist. Returns whether to believe it.
    ///
    /// What was there a moment ago may only be hidden, by a proxy without servers behind it or by
    /// a server that is starting.
    fn is_absent(&mut self, now: Instant) -> bool {
        let absence = match self.presence {
            Presence::Unknown => return true,
            Presence::Listed => Absence::new(now),
            Presence::Absent(absence) => absence.again(),
        };
        self.presence = Presence::Absent(absence);
        absence.is_lasting(now, &self.settings.timings)
    }

    /// Goes on without a collection that the server does not have, if that is possible.
    async fn fall_back(&mut self) -> bool {
        match self.kind {
            Kind::ServiceCidr => {
                if !std::mem::replace(&mut self.logged_missing, true) {
                    tracing::info!(
                        resource = self.resource.name,
                        "The API server does not offer ServiceCIDRs; assuming none"
                    );
                }
                self.next = Next::List;
                self.version = Version::Any;
                self.begin_list();
                self.intake.end_list();
                self.deliver().await;
                sleep(self.settings.timings.rarely).await;
                true
            }
            Kind::EndpointSlice if self.resource.name != ENDPOINTS.name => {
                if !std::mem::replace(&mut self.logged_missing, true) {
                    tracing::warn!(
                        resource = self.resource.name,
                        "The API server does not offer EndpointSlices; using core Endpoints"
                    );
                }
                self.switch_to(&ENDPOINTS);
                true
            }
            _ => false,
        }
    }

    /// From now on the objects are there, and everything is to be listed again.
    fn switch_to(&mut self, resource: &'static Resource) {
        self.resource = resource;
        self.next = Next::List;
        self.version = Version::Any;
    }

    /// While core Endpoints are in use: whether the server offers slices by now.
    async fn probe_slices(&mut self) {
        if self.resource.name != ENDPOINTS.name {
            return;
        }
        let slices = Resource::of(self.kind);
        let limit = self.settings.timings.answer;
        let probe = slices.probe();
        let answer = self.api.get(&probe, self.settings.format, limit);
        if answer.await.is_ok() {
            tracing::info!(
                resource = slices.name,
                "The API server offers EndpointSlices; using them instead of core Endpoints"
            );
            self.switch_to(slices);
        }
    }

    fn known_version(&self) -> Option<&str> {
        match &self.version {
            Version::At(version) => Some(version),
            Version::Any | Version::Newest => None,
        }
    }

    fn watch_seconds(&mut self) -> u64 {
        let seconds = if self.resource.name == ENDPOINTS.name {
            &FALLBACK_WATCH
        } else {
            &self.settings.timings.watch_seconds
        };
        self.random.within(seconds)
    }
}
