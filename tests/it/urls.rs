//! URLs of stores: what cannot be used is refused with the URL to write, and no secret is shown.

use tenure::{Error, Locks};

use crate::help::soon;

/// Stands for a password. It is drawn, so that no text has it by chance.
const SECRET: &str = "{secret}";

/// Returns the error of a URL that cannot be used. Nothing connects.
async fn refusal(url: &str) -> Error {
    let connected = soon(Locks::builder().lazy().connect(url)).await;
    connected.err().unwrap_or_else(|| panic!("{url} can be used"))
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn forty_bad_urls_say_what_to_write() {
    let secret = format!("s{:016x}", drawn());
    // A password that looks like a port.
    let number = "54321";
    let bad = [
        ("", "`redis://host:6379`"),
        (" redis://one", "space"),
        ("redis://one\n", "line break"),
        ("\"redis://one\"", "quotes"),
        ("localhost", "write `redis://localhost`"),
        ("localhost:6379", "write `redis://localhost:6379`"),
        ("127.0.0.1:6379/2", "write `redis://127.0.0.1:6379`"),
        (":{secret}@localhost:6379", "lacks a scheme"),
        ("redis:one", "lacks a scheme"),
        ("http://one/", "`redis://host:6379`"),
        ("tcp://:{secret}@one", "unknown scheme"),
        ("redis://", "names no host"),
        ("redis://{secret}@one", "user without a password"),
        ("redis+cluster://{secret}:@one,two", "user without a password"),
        ("redis+sentinel://{secret}@one/name", "user without a password"),
        (
            "redis://one?prefix=tenure{secret}",
            "`prefix` that cannot be used",
        ),
        (
            "unix://user:{secret}@/run/redis.sock?db=0",
            "write `unix:///path`",
        ),
        (
            "unix://:{secret}@localhost/run/redis.sock",
            "write `unix:///path`",
        ),
        ("unix:///run/redis.sock?db={secret}", "database number"),
        (
            "unix:///run/redis.sock?protocol=resp3;pass={secret}",
            "`resp2` nor `resp3`",
        ),
        ("unix:///run/redis.sock?user={secret}", "user without a password"),
        ("redis-sentinel://:aB/{secret}/cd@one", "write `redis+sentinel://"),
        ("redis-sentinel://:aB/{secret}?cd@one", "write `redis+sentinel://"),
        ("redis+quorum://one,u:{secret}@two,three,four", "write `%2C`"),
        ("redis://:{secret}@", "names no host"),
        ("redis://one:port", "from 1 to 65535"),
        ("redis://one:0", "from 1 to 65535"),
        ("redis://one:65536", "from 1 to 65535"),
        ("redis://user:{secret}", "in front of a `@`"),
        ("redis://:p/{secret}@one", "`%2F` for `/`"),
        ("redis://:p?{secret}@one", "`%3F` for `?`"),
        ("redis://:p#{secret}@one", "`%23`"),
        ("redis://::1", "write `[::1]:6379`"),
        ("redis://one/db", "no number of a database"),
        ("redis://one/0/1", "number of a database"),
        ("redis://one,two", "`redis+cluster://one,two`"),
        ("redis://one?node=two", "all hosts in front of the path"),
        ("redis://one?{secret}=1", "the options are `prefix`"),
        ("redis://one?prefix=", "without a value"),
        ("redis://one?prefix=a&prefix={secret}", "twice"),
        ("redis://one?protocol={secret}", "`resp2` nor `resp3`"),
        ("redis://one?recovery={secret}", "`evidence` nor `always`"),
        ("redis://one?longest=30s", "needs `recovery=always`"),
        ("redis://one?recovery=always&lag={secret}", "`lag=500ms`"),
        ("redis+sentinel://one,two", "`redis+sentinel://one,two/name`"),
        ("redis+sentinel://:{secret}@one,two:/name", "host 2"),
        ("redis+sentinel://one,,two/name", "empty host 2"),
        ("redis+sentinel://one/name/zero", "`/name/0`"),
        (
            "redis+sentinel://one/name?sentinel_username=a",
            "needs `sentinel_password`",
        ),
        (
            "redis+sentinel://one/name?recovery=evidence&lag=1s",
            "needs `recovery=always`",
        ),
        ("redis+cluster://one/1", "database 0 only"),
        ("redis+cluster://u:{secret}@one,u:{secret}@two", "stand once"),
        ("redis+cluster://one?recovery=always", "unknown here"),
        ("redis+quorum://one,two,three?recovery=always", "unknown here"),
        ("redis+quorum://one,two", "3, 5 or 7"),
        ("redis+quorum://one,two,one", "twice"),
        (
            "redis-sentinel://:{secret}@one:26379,two/0#orders",
            "`redis+sentinel://user:password@one:26379,two/orders/0`",
        ),
        ("sentinel://one/orders", "`redis+sentinel://one/orders`"),
        ("redis-cluster://u:{number}/a@one", "`redis+cluster://host:6379`"),
        ("u:{number}/a@one", "lacks a scheme: write `redis://host:6379`"),
        ("rediss-cluster://one,two", "`rediss+cluster://one,two`"),
        ("valkey+sentinel://one/orders", "`redis+sentinel://one/orders`"),
        ("rediss://:{secret}@one/#insecure", "remove `#insecure`"),
        ("memory://a/b", "`memory://name`"),
        ("memory://a?recovery=always", "unknown here"),
    ];
    assert!(bad.len() >= 40);
    for (url, words) in bad {
        let url = url.replace(SECRET, &secret).replace("{number}", number);
        let error = refusal(&url).await;
        let text = format!("{error} {error:?}");
        assert!(matches!(error, Error::Options(_)), "{url}: {text}");
        assert!(text.contains(words), "{url}: {text}");
        assert!(!text.contains(&secret) && !text.contains(number), "{url}: {text}");
    }
}

fn drawn() -> u64 {
    std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 1)
}

/// The URL wins over the builder: an operator's command gets the same URL.
#[cfg(feature = "redis")]
#[tokio::test]
async fn the_options_of_a_url_win_over_the_builder() {
    let lazy = |url| {
        let builder = Locks::builder().lazy().prefix("builder:");
        soon(builder.lease(std::time::Duration::from_secs(20)).connect(url))
    };
    let Err(error) = lazy("redis://one?prefix=tenure").await else {
        panic!("the prefix of the builder is used")
    };
    assert!(error.to_string().contains("prefix"), "{error}");
    for url in [
        "redis://one?recovery=always&longest=10s",
        "redis+sentinel://one/name?longest=10s",
        "redis+quorum://one,two,three?longest=10s",
    ] {
        let Err(error) = lazy(url).await else {
            panic!("{url}: the lease of 20 s is shorter than the longest")
        };
        assert!(error.to_string().contains("at most 10s"), "{url}: {error}");
    }
}

#[tokio::test]
async fn a_name_in_memory_is_one_store_of_this_process() {
    let connect = |url| soon(Locks::connect(url));
    let one = connect("memory://urls").await.unwrap();
    let other = connect("memory://urls").await.unwrap();
    let apart = connect("memory://urls-2").await.unwrap();
    let _held = soon(one.mutex("a").lock()).await.unwrap();
    assert!(soon(other.mutex("a").try_lock()).await.unwrap().is_none());
    assert!(soon(apart.mutex("a").try_lock()).await.unwrap().is_some());
    let error = refusal("memory://a:b@c").await;
    assert!(!error.to_string().contains("a:b"), "{error}");
}
